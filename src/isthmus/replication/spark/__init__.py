"""Spark itself: the Java that runs it, its workers and executors, and its end."""
