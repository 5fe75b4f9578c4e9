"""Kafka as a Spark data source: batch and streaming reads and writes of one topic, without a route."""
