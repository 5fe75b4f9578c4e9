"""Kafka records as encoded AMQP messages, and back."""
