"""Spark itself: its Java, its workers and executors, and its end."""
