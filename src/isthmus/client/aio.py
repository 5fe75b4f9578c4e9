"""The application's client library for asyncio: the names of `isthmus.client`, with coroutines for methods.

See `isthmus.client`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from isthmus.extra import require

if TYPE_CHECKING:
    from isthmus.client.failover_receiver_async import FailoverReceiver
    from isthmus.client.identity import mended, republish, unique_message_id
    from isthmus.client.relay.listener import RelayListener
    from isthmus.client.relay.message import RelayConnection
    from isthmus.client.relay.requester import RelayRequester
    from isthmus.client.replicated_receiver_async import ReplicatedReceiver
    from isthmus.client.send.durable_sender import AsyncDurableSender as DurableSender
    from isthmus.client.send.replicated_sender import AsyncReplicatedSender as ReplicatedSender

__all__ = [
    "DurableSender",
    "FailoverReceiver",
    "RelayConnection",
    "RelayListener",
    "RelayRequester",
    "ReplicatedReceiver",
    "ReplicatedSender",
    "mended",
    "republish",
    "unique_message_id",
]

# Name here → module, and the name there.
_MODULES = {
    "DurableSender": ("isthmus.client.send.durable_sender", "AsyncDurableSender"),
    "FailoverReceiver": ("isthmus.client.failover_receiver_async", "FailoverReceiver"),
    "RelayConnection": ("isthmus.client.relay.message", "RelayConnection"),
    "RelayListener": ("isthmus.client.relay.listener", "RelayListener"),
    "RelayRequester": ("isthmus.client.relay.requester", "RelayRequester"),
    "ReplicatedReceiver": ("isthmus.client.replicated_receiver_async", "ReplicatedReceiver"),
    "ReplicatedSender": ("isthmus.client.send.replicated_sender", "AsyncReplicatedSender"),
    "mended": ("isthmus.client.identity", "mended"),
    "republish": ("isthmus.client.identity", "republish"),
    "unique_message_id": ("isthmus.client.identity", "unique_message_id"),
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    require("", f"isthmus.client.aio.{name}")
    module, there = _MODULES[name]
    return getattr(importlib.import_module(module), there)


def __dir__() -> list[str]:
    return sorted(__all__)
