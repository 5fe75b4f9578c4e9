"""A number for a message of a system without positions, by which the next process recognises it.

What it is: a hash of the parts that its sender wrote (OASIS AMQP 1.0, 3.2: the bare message and the footer), which no redelivery changes.
What it is not: a position, or a duplicate detection: messages with equal contents have the same number.
"""

from __future__ import annotations

from hashlib import blake2b

from isthmus.amqp import section
from isthmus.amqp.codec import CodecError

__all__ = ["content_name"]

# As many bits as a position has (`isthmus.bridge.port`).
_BYTES = 6


def content_name(payload: bytes) -> int:
    """The number of an encoded message, never 0; of all its bytes, if it cannot be read."""
    try:
        places = section.locate(payload)
        start = max(places.header[1], places.delivery_annotations[1], places.message_annotations[1])
    except (CodecError, IndexError):
        start = 0
    return int.from_bytes(blake2b(memoryview(payload)[start:], digest_size=_BYTES).digest(), "big") or 1
