"""Queues, streams and exchanges behind the ports of the bridge."""
