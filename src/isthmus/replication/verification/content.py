"""The content of a message, without what replication adds.

What it is: a digest of the body and of the properties that the publisher set. The digests of a message and of its
unchanged copy are equal. What it is not: the identity of a message; two messages may have equal content.

These are left out: the header (delivery count, remaining time to live), the annotations that a namespace sets, `RuleName`, the
provenance (`repl-*`), the task's mark, every mark of the form that isthmus gives to tasks (a task has another one when its
members change, and copies with the former one remain) and what a dead-letter queue adds. Where a copy was given a MessageId of its own, the
sender's MessageId counts, which the copy has as a property, or none.

Invariants:
    I1. The digest depends on values and their AMQP types, not on their encoding or the order of properties.
    I2. Sections that cannot be decoded are included in the digest as bytes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from hashlib import blake2b
from typing import Any

from isthmus.amqp import codec, section

__all__ = ["content_digest"]

_ADDED = frozenset({"rulename", "deadletterreason", "deadlettererrordescription"})
_PROVENANCE = "repl-"
_SENDERS_ID = "repl-message-id"
_MADE = re.compile(r"isthmus-[0-9a-f]{32}")
# The form in which `isthmus.topology.pattern.part.mark` creates them, in lower case.
_MARK = re.compile(r"isthmus-.+-[0-9a-f]{6}", re.DOTALL)
_PARTITION_KEYS = (b"x-opt-partition-key", b"x-opt-via-partition-key")


def content_digest(message: bytes, marks: tuple[str, ...] = (), made_id: str = "") -> int:
    """A 64-bit digest of what the publisher sent.

    Args:
        message: as received or peeked.
        marks: the properties that the task's rule sets on copies, or has set.
        made_id: for a copy, the MessageId that it was given if the message had none; empty: this is no copy.

    Raises:
        CodecError: the bytes are no message.
    """
    where = section.locate(message)
    try:
        own = section.decode_map(message, where.application_properties)
    except codec.CodecError:
        own = None
    start, end = where.body
    body = section.contents(message, start, end)
    # A log preserves the contents of a data section but not how their length was encoded.
    digest = blake2b(body, digest_size=8, person=b"" if len(body) == end - start else b"data")
    for each in (
        _properties(message, where.properties, made_id, own or {}),
        _own(message, where.application_properties, {mark.lower() for mark in marks}, own),
        _partition_keys(message, where.message_annotations),
    ):
        digest.update(len(each).to_bytes(4, "big"))
        digest.update(each)
    return int.from_bytes(digest.digest(), "big")


def _properties(message: bytes, where: tuple[int, int], made_id: str, own: Mapping[Any, Any]) -> bytes:
    try:
        fields = section.decode_properties(message, where)
    except codec.CodecError:
        return message[where[0] : where[1]]
    if made_id and _SENDERS_ID in own:
        fields["message_id"] = own[_SENDERS_ID]
    elif made_id and (fields.get("message_id") == made_id or _MADE.fullmatch(str(fields.get("message_id")))):
        del fields["message_id"]
    return b"".join(sorted(_pair(name, value) for name, value in fields.items()))


def _own(message: bytes, where: tuple[int, int], marks: Collection[str], own: Mapping[Any, Any] | None) -> bytes:
    if own is None:
        return message[where[0] : where[1]]
    try:
        return b"".join(sorted(_pair(name, value) for name, value in own.items() if not _is_added(name, marks)))
    except codec.CodecError:
        return message[where[0] : where[1]]


def _is_added(name: Any, marks: Collection[str]) -> bool:
    lower = str(name).lower()
    return lower in marks or lower in _ADDED or lower.startswith(_PROVENANCE) or bool(_MARK.fullmatch(lower))


def _pair(name: Any, value: Any) -> bytes:
    return codec.encode(name) + codec.encode(value)


def _partition_keys(message: bytes, where: tuple[int, int]) -> bytes:
    found = []
    for key, value, after in section.map_items(message, where):
        name = message[key + 2 : value]
        if name in _PARTITION_KEYS:
            try:
                found.append(_pair(name, codec.decode(message, value)[0]))
            except codec.CodecError:
                found.append(message[key:after])
    return b"".join(sorted(found))
