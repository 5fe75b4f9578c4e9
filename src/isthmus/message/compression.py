"""The form in which a route sends many bytes over a long distance: a batch envelope, deflated.

What it is: the capability by which the two ends agree on it, the message format that identifies it, and both directions of the
transformation. What it is not: the envelope (`isthmus.transport.sender`, `isthmus.entities.record.envelope`), nor the choice of what goes
into one. Each envelope is deflated by itself, so that the size of one reveals nothing about another; no token is ever in one.

Invariants:
    I1. `expand(compress(data), len(data))` is `data`.
    I2. `expand` makes no more bytes than its limit, nor more than `MOST_TIMES` as many as it was given.

Source: RFC 1950 (zlib); docs/adr/0030-deflated-envelopes.md.
"""

from __future__ import annotations

import zlib

from isthmus.errors import InvalidArgumentError

__all__ = ["DEFLATE", "DEFLATED_FORMAT", "MOST_TIMES", "compress", "expand"]

DEFLATE = "isthmus:deflate"
"""Capability of a link to whose receiver deflated envelopes may be sent."""

DEFLATED_FORMAT = 0x69737A00
"""Message format of a deflated batch envelope; the last octet is its version (OASIS AMQP 1.0 2.7.5)."""

MOST_TIMES = 32
"""Data that would expand to more than so many times its size is sent uncompressed: small deliveries must not fill the receiver's memory."""

# The fastest level; it reduces flights as JSON to a sixth.
_LEVEL = 1
# Below this size, compression saves too little to be worth its time.
_LEAST_BYTES = 512


def compress(data: bytes) -> bytes | None:
    """The data in fewer bytes; None where compression saves nothing, or where `expand` would refuse the result."""
    if len(data) < _LEAST_BYTES:
        return None
    found = zlib.compress(data, _LEVEL)
    return found if len(found) < len(data) * 7 // 8 and len(data) <= MOST_TIMES * len(found) else None


def expand(data: bytes, limit: int) -> bytes:
    """What was compressed.

    Args:
        data: what `compress` made.
        limit: how many bytes it may become.

    Raises:
        InvalidArgumentError: the data is not of this form, is cut off, or would become more.
    """
    most = min(limit, MOST_TIMES * len(data))
    stream = zlib.decompressobj()
    try:
        found = stream.decompress(data, most + 1)
    except zlib.error as error:
        raise InvalidArgumentError(f"a deflated envelope cannot be read: {error}") from None
    if len(found) > most:
        raise InvalidArgumentError(f"a deflated envelope of {len(data)} bytes becomes more than {most} bytes")
    if not stream.eof or stream.unused_data:
        raise InvalidArgumentError("a deflated envelope is cut off, or something follows it")
    return found
