"""The thread that reads a topic, and its uncommitted records."""
