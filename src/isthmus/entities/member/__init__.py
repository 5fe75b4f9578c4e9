"""The parts of every entity in one store: its context and row, and the handling of messages that it is sent."""
