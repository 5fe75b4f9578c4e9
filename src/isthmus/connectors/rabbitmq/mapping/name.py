"""The names of the headers and properties that the mapping adds (`mapping`), and the names with a meaning for RabbitMQ."""

from __future__ import annotations

__all__ = [
    "AMQP_HEADER",
    "BROKER_HEADERS",
    "EXCHANGE",
    "NOTE_PROPERTY",
    "ROUTING_HEADERS",
    "ROUTING_KEY",
    "SHOWN",
]

AMQP_HEADER = "isthmus-amqp"
NOTE_PROPERTY = "isthmus-rabbitmq"
SHOWN = "amqp-"
# The names in RabbitMQ's own AMQP 1.0.
EXCHANGE, ROUTING_KEY = "x-exchange", "x-routing-key"
# `x-acquired-count` from RabbitMQ 4.3 on.
BROKER_HEADERS = frozenset({"x-delivery-count", "x-acquired-count", "x-stream-offset"})
# RabbitMQ routes by these ("Sender-selected Distribution").
ROUTING_HEADERS = frozenset({"CC", "BCC"})
