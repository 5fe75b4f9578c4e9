"""Sources that request messages with blocking calls, and hold a lock on each received message."""
