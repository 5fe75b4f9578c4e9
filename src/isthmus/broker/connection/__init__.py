"""The parts of a client's connection: its links and their entities, its credentials, and the flow control of its reads."""
