"""Servers and faults for the store's tests."""
