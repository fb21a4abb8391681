"""Child processes: own session and group, output in a file, stopped with their parent, deadlines."""
