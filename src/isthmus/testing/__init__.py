"""A public kit for tests of programs that use isthmus: a manual clock, and namespaces for the length of a test."""
