"""Copies as routes write them."""

from __future__ import annotations

import struct

from isthmus.amqp import section
from isthmus.entities.record.parse import HeadCache, split
from isthmus.entities.record.record import Parts
from isthmus.message import Tail
from isthmus.message.name import DIGEST, HOP_PROPERTIES, MESSAGE_ID
from isthmus.message.provenance import encoded

BODY = b"x" * 40


def copy(
    number: int | str = 7,
    origin: str = "ewr/flights",
    namespace: str = "A",
    own: bytes = b"",
    hops: int = 1,
    proof: str = "0" * 16,
    sender_id: str = "",
    message_id: str = "id",
) -> Parts:
    """A copy."""
    tail = Tail(origin, namespace)
    values: tuple[str, ...]
    if isinstance(number, str):
        values = (origin, namespace, number, number, "2026-01-01T00:00:00.000Z")
    else:
        one = (origin, namespace, str(number), f"{number}-0123abcd", "2026-01-01T00:00:00.000Z")
        values = tuple(f"{value};{value}2" for value in one) if hops > 1 else one
    pairs = own + b"".join(encoded(k) + encoded(v) for k, v in zip(HOP_PROPERTIES, values, strict=True))
    pairs += tail.digest + proof.encode() if len(proof) == 16 else encoded(DIGEST) + encoded(proof)
    if sender_id:
        pairs += encoded(MESSAGE_ID) + encoded(sender_id)
    plain = section.encode_message(BODY, properties={"message_id": message_id})
    found = section.locate(plain)
    application = b"\0St\xd1" + struct.pack(">II", len(pairs) + 4, 12) + pairs
    return split(plain[slice(*found.properties)] + application + plain[slice(*found.body)], HeadCache(0))
