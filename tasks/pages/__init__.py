"""What people read about a run: pages of the UI, and the table of the terminal. Pure text."""
