"""The engine that moves messages between any source and any target; it knows no system."""
