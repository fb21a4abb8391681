"""The command line and the local services behind it."""
