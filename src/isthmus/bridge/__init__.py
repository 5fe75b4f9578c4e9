"""The engine that moves messages between any source and any target, independent of their systems."""
