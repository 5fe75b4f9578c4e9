"""The interface to Spark: one source and one sink for routes of every kind."""
