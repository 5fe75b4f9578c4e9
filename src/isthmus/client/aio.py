"""The application's client library for asyncio: the names of `isthmus.client`, with coroutines for methods.

See `isthmus.client`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from isthmus.extra import require

if TYPE_CHECKING:
    from isthmus.client.failover_receiver_async import FailoverReceiver
    from isthmus.client.identity import republish, unique_message_id
    from isthmus.client.replicated_receiver_async import ReplicatedReceiver

__all__ = ["FailoverReceiver", "ReplicatedReceiver", "republish", "unique_message_id"]

_MODULES = {
    "FailoverReceiver": "isthmus.client.failover_receiver_async",
    "ReplicatedReceiver": "isthmus.client.replicated_receiver_async",
    "republish": "isthmus.client.identity",
    "unique_message_id": "isthmus.client.identity",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    require("", f"isthmus.client.aio.{name}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
