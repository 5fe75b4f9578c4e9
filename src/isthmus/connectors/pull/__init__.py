"""Sources that ask for messages by blocking requests, and hold a lock on each that they were given."""
