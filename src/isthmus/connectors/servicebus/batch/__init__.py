"""Micro-batches of a streaming read, settled when Spark commits."""
