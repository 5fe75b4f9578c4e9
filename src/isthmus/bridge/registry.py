"""The connectors by kind.

What it is: the lookup of a kind's connector, which is loaded at its first use, in the process that uses it. What it is not: a
plug-in system; the kinds are those of this package.

Invariants:
    I1. An unknown kind is refused with the kinds that are known.
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import cast

from isthmus.bridge.port import Connector
from isthmus.errors import InvalidArgumentError

__all__ = ["KINDS", "connector"]

KINDS = {
    "servicebus": "isthmus.connectors.servicebus.port.connector:CONNECTOR",
    "kafka": "isthmus.connectors.kafka.connector:CONNECTOR",
    "rabbitmq": "isthmus.connectors.rabbitmq.port.connector:CONNECTOR",
    "rabbitmq-streams": "isthmus.connectors.rabbitmq_streams.connector:CONNECTOR",
    "amqp": "isthmus.connectors.amqp.connector:CONNECTOR",
    "eventhubs": "isthmus.connectors.eventhubs.connector:CONNECTOR",
    "iothub": "isthmus.connectors.iothub.connector:CONNECTOR",
    "spool": "isthmus.connectors.spool.connector:CONNECTOR",
    "eventgrid": "isthmus.connectors.eventgrid.connector:CONNECTOR",
    "http": "isthmus.connectors.http.connector:CONNECTOR",
    "queuestorage": "isthmus.connectors.queuestorage.connector:CONNECTOR",
    "ledger": "isthmus.connectors.ledger.connector:CONNECTOR",
}


@cache
def connector(kind: str) -> Connector:
    """The connector of a kind.

    Raises:
        InvalidArgumentError: there is no such kind.
    """
    place = KINDS.get(kind)
    if place is None:
        raise InvalidArgumentError(f"kind '{kind}' is unknown; known are {', '.join(KINDS)}")
    module, _, name = place.partition(":")
    return cast(Connector, getattr(importlib.import_module(module), name))
