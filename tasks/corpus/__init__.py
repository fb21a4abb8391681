"""Prompts and rows: reading, validating, accounting."""
