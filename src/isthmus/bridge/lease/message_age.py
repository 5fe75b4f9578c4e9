"""The age of a message when it arrived.

What it is: when a message was enqueued, from its annotation `x-opt-enqueued-time`, or when it was made, from its property
creation-time (OASIS AMQP 1.0 part 3, 3.2.4). What it is not: an estimate of clocks (`source_clock`).

Invariants:
    I1. A message that cannot be read, or has no time, has age 0.
"""

from __future__ import annotations

import struct

from isthmus.amqp import codec, section
from isthmus.amqp.codec import CodecError

__all__ = ["age_ms", "enqueued_ms"]

_ENQUEUED = b"x-opt-enqueued-time"


def age_ms(message: bytes, wall_ms: int) -> int:
    """The age of an encoded message at a wall time of its source's system."""
    try:
        told_ms = _told_ms(message)
    except (CodecError, ValueError, IndexError, struct.error):
        return 0
    return max(0, wall_ms - told_ms) if told_ms else 0


def enqueued_ms(message: bytes) -> int:
    """The wall time at which the source's system enqueued an encoded message; 0 where it has none."""
    try:
        return _enqueued_ms(message, section.locate(message))
    except (CodecError, ValueError, IndexError, struct.error):
        return 0


def _told_ms(message: bytes) -> int:
    sections = section.locate(message)
    found = _enqueued_ms(message, sections) or section.decode_properties(message, sections.properties).get(
        "creation_time"
    )
    return found if isinstance(found, int) else 0


def _enqueued_ms(message: bytes, sections: section.Sections) -> int:
    for key, value, _ in section.map_items(message, sections.message_annotations):
        if message[key + 2 : value] == _ENQUEUED:
            found = codec.decode(message, value)[0]
            return found if isinstance(found, int) else 0
    return 0
