"""The body of a message alone.

What it is: the bytes for a system that must receive no envelope. What it is not: a wrapping; properties are lost.
"""

from __future__ import annotations

from isthmus.connectors.kafka.mapping.mapping import to_record

__all__ = ["body_of"]


def body_of(message: bytes) -> bytes:
    """The body: the contents of one data section, the text of one string, or any other body as encoded.

    Raises:
        CodecError: it is not a message.
    """
    return to_record(message).value or b""
