"""What tests with azure-servicebus share: receiving as many messages as are expected, looking at them, keeping locks."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from azure.servicebus import ServiceBusReceiveMode

__all__ = ["DELETE", "WAIT_SECONDS", "areceive", "bodies", "outlast", "receive"]

DELETE = ServiceBusReceiveMode.RECEIVE_AND_DELETE
# Only a receiver that expects more than comes waits so long: a loaded machine may hang for seconds.
WAIT_SECONDS = 20.0


def receive(receiver: Any, count: int, wait: float = WAIT_SECONDS) -> list[Any]:
    """Up to `count` messages; fewer if none came for `wait` seconds."""
    found: list[Any] = []
    while len(found) < count:
        more = receiver.receive_messages(max_message_count=count - len(found), max_wait_time=wait)
        if not more:
            break
        found += more
    return found


async def areceive(receiver: Any, count: int, wait: float = WAIT_SECONDS) -> list[Any]:
    """As `receive`, of an asynchronous receiver."""
    found: list[Any] = []
    while len(found) < count:
        more = await receiver.receive_messages(max_message_count=count - len(found), max_wait_time=wait)
        if not more:
            break
        found += more
    return found


def bodies(messages: list[Any]) -> list[str]:
    """The messages' bodies as text."""
    return [b"".join(message.body).decode() for message in messages]


def outlast(end: datetime, renew: Callable[[], object] = lambda: None) -> None:
    """Sleeps until the end of a lock has passed; renews it meanwhile, often enough for a machine that hangs at times."""
    while datetime.now(UTC) < end + timedelta(milliseconds=200):
        time.sleep(0.25)
        renew()
