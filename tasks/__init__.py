"""Draftworks: a file here is a stage, a folder is a room of plain code (see README.md)."""
