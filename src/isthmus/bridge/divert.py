"""The diverted form of a message: as received, with the reason.

What it is: why, where and on which route a step did not pass a message on, written into its application properties under the names that
copies of dead letters have (`isthmus.message.copy_policy`, `keeps_dead_letter`). What it is not: the copy, which is the target's connector's.
Specification: OASIS AMQP 1.0 part 3, 3.2.5.

Invariants:
    I1. Every other section, and every other property, is unchanged byte for byte.
"""

from __future__ import annotations

import struct

from isthmus.amqp import section
from isthmus.message.name import WHY_DESCRIPTION, WHY_REASON, WHY_ROUTE, WHY_SOURCE
from isthmus.message.provenance import encoded

__all__ = ["explained"]

_OWN = frozenset(name.encode() for name in (WHY_REASON, WHY_DESCRIPTION, WHY_SOURCE, WHY_ROUTE))
_MAP32 = struct.Struct(">4sII").pack


def explained(message: bytes, reason: str, description: str, source: str, route: str) -> bytes:
    """The message with the reason, which replaces an earlier one.

    Args:
        message: encoded.
        reason: a short name.
        description: a sentence.
        source: alias and entity that the message comes from.
        route: the route's name.

    Raises:
        CodecError: the bytes are not a message.
    """
    sections = section.locate(message)
    start, end = sections.application_properties
    kept = [
        message[key:after]
        for key, value, after in section.map_items(message, sections.application_properties)
        if message[key + (2 if message[key] == 0xA1 else 5) : value] not in _OWN
    ]
    reasons = {WHY_REASON: reason, WHY_DESCRIPTION: description, WHY_SOURCE: source, WHY_ROUTE: route}
    pairs = [*kept, *(encoded(name) + encoded(value) for name, value in reasons.items())]
    written = b"".join(pairs)
    if not end:  # application properties come before the body
        at = next((each[0] for each in (sections.body, sections.footer) if each[1]), len(message))
        start = end = at
    return message[:start] + _MAP32(b"\0St\xd1", len(written) + 4, 2 * len(pairs)) + written + message[end:]
