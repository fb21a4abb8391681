"""Training a draft with speculators: its command line, its file formats, and what it needs to run on a CPU."""
