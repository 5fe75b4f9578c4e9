"""What tests with azure-servicebus share: receiving as many messages as are expected, and looking at them."""

from __future__ import annotations

from typing import Any

from azure.servicebus import ServiceBusReceiveMode

__all__ = ["DELETE", "areceive", "bodies", "receive"]

DELETE = ServiceBusReceiveMode.RECEIVE_AND_DELETE


def receive(receiver: Any, count: int, wait: float = 5.0) -> list[Any]:
    """Up to `count` messages; fewer if none came for `wait` seconds."""
    found: list[Any] = []
    while len(found) < count:
        more = receiver.receive_messages(max_message_count=count - len(found), max_wait_time=wait)
        if not more:
            break
        found += more
    return found


async def areceive(receiver: Any, count: int, wait: float = 5.0) -> list[Any]:
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
