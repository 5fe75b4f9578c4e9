"""The application's client library: senders and receivers that outlive a region.

What it is: classes over azure-servicebus's own types, for applications that have a primary and a secondary namespace, or
that must not lose a message while their namespace is unavailable. They behave the same with Azure and with namespaces of isthmus.
`isthmus.client.aio` has the same names for asyncio. See docs/reference/client.md.

The names are imported when they are first used, so that `import isthmus.client` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from isthmus.extra import require

if TYPE_CHECKING:
    from isthmus.client.circuit import Circuit
    from isthmus.client.endpoint import Endpoint
    from isthmus.client.failover_receiver import FailoverReceiver
    from isthmus.client.failure import Failure, classify
    from isthmus.client.identity import mended, republish, unique_message_id
    from isthmus.client.outbox.store import OutboxFullError
    from isthmus.client.relay.blocking import BlockingRelayConnection, RelayListener, RelayRequester
    from isthmus.client.relay.message import RelayRequest, RelayResponse
    from isthmus.client.relay.pair import RelayRefusedError, RelayUnavailableError
    from isthmus.client.replicated_receiver import ReplicatedReceiver
    from isthmus.client.send.durable_sender import DurableSender, EntityForbiddenError
    from isthmus.client.send.replicated_sender import ReplicatedSender
    from isthmus.client.send.replication import RegionsUnavailableError, SendResult

__all__ = [
    "BlockingRelayConnection",
    "Circuit",
    "DurableSender",
    "Endpoint",
    "EntityForbiddenError",
    "FailoverReceiver",
    "Failure",
    "OutboxFullError",
    "RegionsUnavailableError",
    "RelayListener",
    "RelayRefusedError",
    "RelayRequest",
    "RelayRequester",
    "RelayResponse",
    "RelayUnavailableError",
    "ReplicatedReceiver",
    "ReplicatedSender",
    "SendResult",
    "classify",
    "mended",
    "republish",
    "unique_message_id",
]

_MODULES = {
    "FailoverReceiver": "isthmus.client.failover_receiver",
    "ReplicatedReceiver": "isthmus.client.replicated_receiver",
    "Circuit": "isthmus.client.circuit",
    "DurableSender": "isthmus.client.send.durable_sender",
    "Endpoint": "isthmus.client.endpoint",
    "EntityForbiddenError": "isthmus.client.send.durable_sender",
    "Failure": "isthmus.client.failure",
    "OutboxFullError": "isthmus.client.outbox.store",
    "BlockingRelayConnection": "isthmus.client.relay.blocking",
    "RelayListener": "isthmus.client.relay.blocking",
    "RelayRefusedError": "isthmus.client.relay.pair",
    "RelayRequest": "isthmus.client.relay.message",
    "RelayRequester": "isthmus.client.relay.blocking",
    "RelayResponse": "isthmus.client.relay.message",
    "RelayUnavailableError": "isthmus.client.relay.pair",
    "RegionsUnavailableError": "isthmus.client.send.replication",
    "ReplicatedSender": "isthmus.client.send.replicated_sender",
    "SendResult": "isthmus.client.send.replication",
    "classify": "isthmus.client.failure",
    "mended": "isthmus.client.identity",
    "republish": "isthmus.client.identity",
    "unique_message_id": "isthmus.client.identity",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    require("", f"isthmus.client.{name}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
