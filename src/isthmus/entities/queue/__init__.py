"""Queues: what also subscriptions and dead-letter queues are."""
