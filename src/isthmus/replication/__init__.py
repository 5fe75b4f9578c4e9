"""Patterns of replication: a task becomes routes, a route becomes a Spark query."""
