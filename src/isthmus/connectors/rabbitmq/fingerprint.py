"""What tells a message that is delivered again from others: a digest of all that it holds.

What it is: one number of exchange, routing key, properties and body, without what the broker changes from one delivery to the next. What
it is not: stable beyond the process.

Invariants:
    I1. Two deliveries of one message have the same fingerprint, whatever the queue's type.
"""

from __future__ import annotations

import struct

from isthmus.connectors.rabbitmq import property as props
from isthmus.connectors.rabbitmq.property import Record
from isthmus.connectors.rabbitmq.table import TableError

__all__ = ["fingerprint_of"]

# Quorum queues count deliveries in a header.
DELIVERY_COUNT = "x-delivery-count"
_NAME = DELIVERY_COUNT.encode()


def fingerprint_of(record: Record) -> int:
    """The fingerprint of a delivery."""
    body, properties, exchange, routing_key = record
    if _NAME in properties:
        properties = _without_count(properties)
    return hash((properties, body, exchange, routing_key))


def _without_count(raw: bytes) -> bytes:
    try:
        found = props.read(raw)
        return props.write(found._replace(headers=tuple(each for each in found.headers if each[0] != DELIVERY_COUNT)))
    except (TableError, struct.error):
        return raw
