"""Properties without a MessageId, as of a Kafka record: their detection, and adding a MessageId.

What it is: two functions on encoded properties, for the fast path of `message_rewriter`. What it is not: the making of a
MessageId (`isthmus.message.made_message_id`).
Specification: OASIS AMQP 1.0, 3.2.4.
"""

from __future__ import annotations

__all__ = ["is_unnamed", "named"]

_NO_FIELDS_BUT_TIME = b"\x40" * 9 + b"\x83"
_UNNAMED_BYTES = 200


def is_unnamed(b: bytes, start: int, end: int) -> bool:
    """Whether a section of properties is of a Kafka record: a creation time, perhaps a SessionId, and room for a MessageId."""
    if b[start + 6 : start + 16] != _NO_FIELDS_BUT_TIME or b[start + 4] > _UNNAMED_BYTES:
        return False
    if end == start + 24:
        return b[start + 5] == 10
    is_session = b[start + 5] == 11 and b[start + 24] == 0xA1 and start + 26 + b[start + 25] == end
    return is_session and b[start + 26 : end].isascii()


def named(properties: bytes, message_id: bytes) -> bytes:
    """Adds a MessageId to properties without one."""
    size = properties[4] + 1 + len(message_id)
    return b"\0Ss\xc0%c%c\xa1%c%b%b" % (size, properties[5], len(message_id), message_id, properties[7:])
