"""The fingerprint of a redelivered message: its contents, without the parts that the broker changes from one delivery to the next.

What it is: the traits kept of each delivery, at no cost, and the number made of them when a connection was lost. What it is
not: stable across processes.

RabbitMQ's changes: quorum queues count deliveries in headers, and sort the headers of redelivered messages by name.

Invariants:
    I1. Two deliveries of one message have the same fingerprint, whatever the queue's type.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from isthmus.connectors.rabbitmq.mapping.name import BROKER_HEADERS
from isthmus.connectors.rabbitmq.protocol import property as props
from isthmus.connectors.rabbitmq.protocol.property import Record
from isthmus.connectors.rabbitmq.protocol.table import TableError

__all__ = ["Traits", "fingerprint_of", "traits_of"]


# Of larger properties only their hash is kept.
KEPT_BYTES = 512


class Traits(NamedTuple):
    """The traits of a delivery: of its body a hash, and of large properties, too."""

    properties: bytes | int
    body_hash: int
    exchange: str
    routing_key: str


def traits_of(record: Record) -> Traits:
    """The traits of a delivery."""
    body, properties, exchange, routing_key = record
    kept = properties if len(properties) <= KEPT_BYTES else _print_of(properties)
    return Traits(kept, hash(body), exchange, routing_key)


def fingerprint_of(traits: Traits) -> int:
    """The fingerprint of a delivery."""
    kept = traits.properties
    return hash((kept if isinstance(kept, int) else _print_of(kept), *traits[1:]))


def _print_of(properties: bytes) -> int:
    try:
        found = props.read(properties)
    except (TableError, struct.error):
        return hash(properties)
    headers = tuple(sorted(each for each in found.headers if each[0] not in BROKER_HEADERS))
    return hash(found._replace(headers=headers))
