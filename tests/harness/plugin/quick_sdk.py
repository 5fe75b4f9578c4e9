"""The Azure SDKs without their idle sleeps and without a second reader, in the process of the tests.

A client of azure-servicebus or azure-eventhub sleeps a second between two looks at whether it was closed, and its `close` waits
for that; while it opens, it sleeps 50 ms after each frame. One opening and closing is a second and a half of idle time, and
the tests do it thousands of times. What is sent, when a connection is kept alive, and what is tried again stays as it
is: only these two sleeps are shorter, and with `--soak` none is. Programs that tests start have the SDKs as they are.

A connection that receives is read by a thread of the SDK as well, every five seconds while nothing is prefetched. When both
threads read a message at one time, the application gets one message with the lock of the other (azure-servicebus 7.15): what it
then completes is a message that it never saw. Tests that count messages would report that as a loss of the namespace.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

__all__ = ["shorten_sleeps", "stop_second_readers"]

# `_keep_alive` and `_keep_alive_async` sleep 1; `_open`, `_mgmt_request` and others 0.05.
SHORTER: dict[float, float] = {1: 0.05, 0.05: 0.005}
NAMES = ("azure.servicebus.", "azure.eventhub.")
MODULES = (
    "_pyamqp.client",
    "_pyamqp.aio._client_async",
    "_servicebus_receiver",
    "_servicebus_sender",
    "aio._servicebus_receiver_async",
    "aio._servicebus_sender_async",
    "_client_base",
    "aio._client_base_async",
    "_consumer",
    "aio._consumer_async",
    "_producer",
    "aio._producer_async",
    "aio._transport._pyamqp_transport_async",
)


class _Shortened:
    """The module `time` or `asyncio` with another `sleep`."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def sleep(self, seconds: float, *others: Any) -> Any:
        return self._module.sleep(SHORTER.get(seconds, seconds), *others)


def shorten_sleeps() -> None:
    """In those modules of the SDKs that have been imported."""
    for full_name in (name + each for name in NAMES for each in MODULES):
        found = sys.modules.get(full_name)
        for name in ("time", "asyncio"):
            module = getattr(found, name, None)
            if isinstance(module, ModuleType):
                setattr(found, name, _Shortened(module))


def stop_second_readers() -> None:
    """No connection is idle for so long in a test that it would need one; for both kinds of clients."""
    for name in NAMES:
        client = getattr(sys.modules.get(name + "_pyamqp.client"), "AMQPClient", None)
        if client is not None:
            client._keep_alive = lambda self: None
        client = getattr(sys.modules.get(name + "_pyamqp.aio._client_async"), "AMQPClientAsync", None)
        if client is not None:
            client._keep_alive_async = _nothing


async def _nothing(client: Any) -> None:
    pass
