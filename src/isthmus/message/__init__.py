"""What isthmus adds to a message: names, provenance, the digest that proves it, and the duplicate key.

What it is: the names and forms that the writer (a route's sink), the readers (routes, `verify`)
and the namespace share. What it is not: AMQP's encoding of a whole message, which is `isthmus.amqp.section`.
See docs/explanation/guarantees.md.
"""

from __future__ import annotations

from isthmus.message.duplicate_key import DUPLICATE_KEYS, duplicate_key, made_message_id
from isthmus.message.provenance import Hop, Provenance, Tail, digest, iso

__all__ = [
    "DUPLICATE_KEYS",
    "Hop",
    "Provenance",
    "Tail",
    "digest",
    "duplicate_key",
    "iso",
    "made_message_id",
]
