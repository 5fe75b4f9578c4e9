"""Checkpoints: how far a route has read each partition, and their stores."""
