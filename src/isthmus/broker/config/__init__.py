"""A namespace's file: read, checked and applied."""
