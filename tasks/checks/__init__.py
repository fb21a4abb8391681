"""Checks: rules as pure functions from evidence about a draft to results, and the verdict they add up to."""
