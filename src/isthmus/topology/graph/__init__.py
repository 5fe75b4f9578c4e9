"""Paths of messages through a federation: edges, cycles, forwarding."""
