"""The sink's process of a lease."""
