"""The thread that reads a topic, and what it has read and not committed."""
