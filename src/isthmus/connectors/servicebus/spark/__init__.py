"""The Spark data source `servicebus`: what Spark calls to read and to write."""
