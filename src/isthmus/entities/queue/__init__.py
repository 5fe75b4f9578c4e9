"""Queues: the common class of queues, subscriptions and dead-letter queues."""
