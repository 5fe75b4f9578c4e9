"""Checkpoints: how far a route has read each partition, and where that is kept."""
