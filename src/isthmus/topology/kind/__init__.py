"""The kinds of namespaces that a federation file can declare: one module each.

A new kind is one module with a `NamespaceKind`, one line in `KINDS`, its connector in `isthmus.bridge.registry` and its system in
`isthmus.connectors.system`; reader, lint, schema and reference page then include it.
"""

from __future__ import annotations

from isthmus.topology.kind.amqp import AMQP
from isthmus.topology.kind.base import NamespaceKind, Shape
from isthmus.topology.kind.eventgrid import EVENT_GRID
from isthmus.topology.kind.eventhubs import EVENT_HUBS
from isthmus.topology.kind.http import HTTP
from isthmus.topology.kind.iothub import IOT_HUB
from isthmus.topology.kind.kafka import KAFKA
from isthmus.topology.kind.queuestorage import QUEUE_STORAGE
from isthmus.topology.kind.rabbitmq import RABBITMQ
from isthmus.topology.kind.rabbitmq_streams import RABBITMQ_STREAMS
from isthmus.topology.kind.servicebus import SERVICE_BUS

__all__ = [
    "AMQP",
    "EVENT_GRID",
    "EVENT_HUBS",
    "HTTP",
    "IOT_HUB",
    "KAFKA",
    "KINDS",
    "QUEUE_STORAGE",
    "RABBITMQ",
    "RABBITMQ_STREAMS",
    "SERVICE_BUS",
    "NamespaceKind",
    "Shape",
]

KINDS: dict[str, NamespaceKind] = {
    kind.name: kind
    for kind in (
        SERVICE_BUS,
        EVENT_HUBS,
        IOT_HUB,
        EVENT_GRID,
        QUEUE_STORAGE,
        KAFKA,
        RABBITMQ,
        RABBITMQ_STREAMS,
        AMQP,
        HTTP,
    )
}
