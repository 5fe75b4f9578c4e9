"""Queues, streams and exchanges as the ports of the bridge."""
