"""How a canary is distinguished from an application's message.

What it is: one check of a message's properties. What it is not: sending canaries (`isthmus.supervisor.watch.canary_watch`).
"""

from __future__ import annotations

from isthmus.amqp import section
from isthmus.amqp.codec import CodecError
from isthmus.message.name import CANARY

__all__ = ["is_canary"]

_NAME = CANARY.encode()


def is_canary(message: bytes) -> bool:
    """Whether the encoded message is a heartbeat message of a route."""
    if _NAME not in message:
        return False
    try:
        return CANARY in section.decode_map(message, section.locate(message).application_properties)
    except CodecError:
        return False
