"""Measurements: of one namespace, of the bridge through Spark, of its latency, and of other products for comparison."""
