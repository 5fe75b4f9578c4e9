"""Replication: the Spark queries that carry the routes of tasks."""
