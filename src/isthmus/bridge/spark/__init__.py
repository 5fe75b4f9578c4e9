"""What Spark calls: one source and one sink for routes of every kind."""
