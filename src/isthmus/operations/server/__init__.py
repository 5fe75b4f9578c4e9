"""A namespace of this machine as a server: its address, health, statistics and back-ups."""
