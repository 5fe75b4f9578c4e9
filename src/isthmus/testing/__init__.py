"""A public kit for tests of programs that use isthmus: time set by hand, namespaces that live as long as a test."""
