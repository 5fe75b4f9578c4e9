"""Micro-batches of a streaming read that settles when Spark commits (settle=commit)."""
