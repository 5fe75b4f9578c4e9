"""Addresses of links, and the start of a link in a partition.

What it is: the paths, filters and properties of links to event hubs, pure. What it is not: a link (`partition.link`).
Specification: Microsoft Learn, "AMQP 1.0 in Azure Service Bus and Event Hubs protocol guide" and "Receive events from or send events to
Event Hubs with AMQP"; Apache's AMQP filter extensions, selector-filter.

Invariants:
    I1. An offset is an opaque text; a sequence number is compared as a number.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from isthmus.amqp.performative import Source
from isthmus.amqp.types import Described, Long, Symbol

__all__ = [
    "GEO_REPLICATION",
    "MANAGEMENT",
    "START_OFFSET",
    "Begin",
    "receiver_properties",
    "receiver_source",
    "sender_path",
]

MANAGEMENT = "$management"
START_OFFSET = "-1"
"""The offset before the first event."""
GEO_REPLICATION = Symbol("com.microsoft:georeplication")
"""The capability that makes a geo-replicated namespace return offsets that are valid in each of its regions."""

_SELECTOR = Symbol("apache.org:selector-filter:string")
_EPOCH = Symbol("com.microsoft:epoch")
_RECEIVER_NAME = Symbol("com.microsoft:receiver-name")


class Begin(NamedTuple):
    """The start of a link.

    Attributes:
        sequence: the first sequence number; -1: the first existing event.
        offset: of the event before it, as the service reported it; empty: unknown.
    """

    sequence: int = -1
    offset: str = ""

    @property
    def selector(self) -> str:
        """The filter's text."""
        if self.offset:
            return f"amqp.annotation.x-opt-offset > '{self.offset}'"
        if self.sequence < 0:
            return f"amqp.annotation.x-opt-offset > '{START_OFFSET}'"
        return f"amqp.annotation.x-opt-sequence-number >= '{self.sequence}'"


def receiver_source(hub: str, group: str, partition: int, begin: Begin) -> Source:
    """The source of a link that reads a partition."""
    address = f"{hub}/ConsumerGroups/{group}/Partitions/{partition}"
    return Source(address, filter={_SELECTOR: Described(_SELECTOR, begin.selector)})


def receiver_properties(owner_level: int, name: str) -> dict[Any, Any]:
    """The properties of a reading link; below 0 it has no owner level."""
    properties: dict[Any, Any] = {_RECEIVER_NAME: name}
    if owner_level >= 0:
        properties[_EPOCH] = Long(owner_level)
    return properties


def sender_path(hub: str, partition: int | None) -> str:
    """The address of a sending link, to a partition or to the one that the key selects."""
    return hub if partition is None else f"{hub}/Partitions/{partition}"
