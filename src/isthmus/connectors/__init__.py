"""I/O: one folder per system that isthmus reads from or writes to."""
