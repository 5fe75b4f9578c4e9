"""Detects a client's protocol by its first bytes.

What it is: a pure function over the bytes received so far. What it is not: I/O.
Spec: AMQP 1.0 part 2, section 2.2 (`AMQP` and four more bytes), RFC 8446 5.1 (a TLS record of type handshake starts
`16 03`), RFC 9112 3 (a request line starts with a method).

Invariants:
    I1. No more than the longest HTTP method and a space are needed to decide; until then the answer is None.
    I2. A prefix of a valid beginning is never refused.
"""

from __future__ import annotations

from enum import Enum

__all__ = ["ENOUGH_BYTES", "Speech", "recognise"]


class Speech(Enum):
    """A client's protocol."""

    AMQP = "amqp"
    TLS = "tls"
    HTTP = "http"
    UNKNOWN = "unknown"


_METHODS = (b"GET ", b"PUT ", b"POST ", b"DELETE ", b"HEAD ", b"OPTIONS ", b"PATCH ")
_SIGNS: tuple[tuple[bytes, Speech], ...] = (
    (b"AMQP", Speech.AMQP),
    (b"\x16\x03", Speech.TLS),
    *((method, Speech.HTTP) for method in _METHODS),
)

# With this many bytes `recognise` always has an answer.
ENOUGH_BYTES = max(len(sign) for sign, _ in _SIGNS)


def recognise(first_bytes: bytes) -> Speech | None:
    """The client's protocol; None while there are too few bytes to decide."""
    undecided = False
    for sign, speech in _SIGNS:
        if first_bytes.startswith(sign):
            return speech
        undecided = undecided or sign.startswith(first_bytes)
    return None if undecided else Speech.UNKNOWN
