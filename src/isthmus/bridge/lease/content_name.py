"""By what a message is known to the next process where its system numbers none.

What it is: a number made of what its sender wrote (OASIS AMQP 1.0, 3.2: the bare message and the footer), which no redelivery changes. What
it is not: a position, or a duplicate detection: messages that hold the same have one number.
"""

from __future__ import annotations

from hashlib import blake2b

from isthmus.amqp import section
from isthmus.amqp.codec import CodecError

__all__ = ["content_name"]

# As many bits as a position has (`isthmus.bridge.port`).
_BYTES = 6


def content_name(payload: bytes) -> int:
    """The number of an encoded message, never 0; of what cannot be read, that of all its bytes."""
    try:
        places = section.locate(payload)
        start = max(places.header[1], places.delivery_annotations[1], places.message_annotations[1])
    except (CodecError, IndexError):
        start = 0
    return int.from_bytes(blake2b(memoryview(payload)[start:], digest_size=_BYTES).digest(), "big") or 1
