"""What a production will take, before any work is done: tokens, bytes, seconds, and whether that may be."""
