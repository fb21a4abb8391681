"""Flows: when the stages run, and in which order."""
