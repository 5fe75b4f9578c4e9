"""The reader's process of a lease."""
