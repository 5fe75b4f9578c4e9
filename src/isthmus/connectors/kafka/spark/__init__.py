"""Kafka as a data source of Spark: batch and streaming reads and writes of one topic, without a route."""
