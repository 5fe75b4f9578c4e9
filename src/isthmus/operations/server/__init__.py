"""A namespace of this machine as a server: where it is, its health, its numbers, its back-ups."""
