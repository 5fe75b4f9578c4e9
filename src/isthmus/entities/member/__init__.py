"""What every entity in one store is made of: its context and row, and what becomes of messages that come to it."""
