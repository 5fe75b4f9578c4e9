"""A message that a step diverted, as its route received it.

What it is: the route that diverted a message and its source, and the message with the number, the time and the time to live
that it had there, without the additions of the diverting: the reason, the last hop of its provenance, and a MessageId that was made. What it is not:
the diverting (`isthmus.bridge.divert` and the rewriter of copies), or the sending (`isthmus.operations.redrive.redrive`).

Invariants:
    I1. Body and footer are unchanged, byte for byte, and so is every property of the sender.
    I2. A route copies the result as it would have copied the diverted message: with the same hops and the same duplicate key,
        also if somebody has repaired the body meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from isthmus.amqp import section
from isthmus.amqp.types import Long, Timestamp
from isthmus.entities.record.amend import with_annotation, with_fields, with_properties
from isthmus.entities.record.parse import HeadCache, split
from isthmus.message import Provenance, digest, duplicate_key, made_message_id
from isthmus.message import name as names
from isthmus.message.lifetime import TTL_LIMIT_MS, milliseconds
from isthmus.message.provenance import Hop, encoded
from isthmus.operations.message import sent_again

__all__ = ["Diversion", "diversion_of", "restored"]

_WHY = (names.WHY_REASON, names.WHY_DESCRIPTION, names.WHY_SOURCE, names.WHY_ROUTE)


class Diversion(NamedTuple):
    """The origin of a diverted message.

    Attributes:
        route: the route whose step diverted it.
        hop: the position from which the route had received it.
    """

    route: str
    hop: Hop


def diversion_of(payload: bytes) -> Diversion | None:
    """The origin of a message; None if no step has diverted it, or its provenance is missing.

    Its provenance counts though the digest may not match: an operator who repairs a message changes its body.

    Raises:
        CodecError: the bytes are not a message.
    """
    found = _own(payload)
    provenance = _provenance(found)
    route = found.get(names.WHY_ROUTE)
    if provenance is None or not isinstance(route, str):
        return None
    return Diversion(route, provenance.hops[-1])


def restored(payload: bytes) -> bytes:
    """The message as its route received it; call it for one that has a `Diversion`.

    Args:
        payload: as delivered from the queue to which it was diverted.

    Raises:
        CodecError, InvalidMessageError: the bytes are not a message.
    """
    found = _own(payload)
    provenance = _provenance(found)
    assert provenance is not None
    *before, hop = provenance.hops
    where = section.locate(payload)
    parts = split(payload, HeadCache(0))
    fields = _sent_id(payload, where, found, is_first=not before)
    rest = with_fields(parts.rest, fields) if fields else parts.rest
    removed = {*_WHY, *(() if before else names.OWN_PROPERTIES), *((names.MESSAGE_ID,) if fields else ())}
    kept: dict[str, Any] = {}
    if before:
        kept = {name: str(found[name]).rpartition(";")[0] for name in names.HOP_PROPERTIES}
        kept[names.DIGEST] = digest(_id_text(rest), _body(payload, where))
    parts = parts._replace(rest=with_properties(rest, kept, removed))
    entered_ms = milliseconds(hop.enqueued)
    if hop.sequence > 0:
        parts = with_annotation(parts, names.SEQUENCE_NUMBER, Long(hop.sequence))
    if entered_ms:
        parts = with_annotation(parts, names.ENQUEUED_TIME, Timestamp(entered_ms))
    diverted_ms = section.map_value(payload, where.message_annotations, names.ENQUEUED_TIME)
    waited_ms = max(0, diverted_ms - entered_ms) if entered_ms and isinstance(diverted_ms, int) else 0
    return _with_life(sent_again(parts), waited_ms)


def _sent_id(payload: bytes, where: section.Sections, found: Mapping[str, Any], *, is_first: bool) -> dict[str, Any]:
    """The MessageId that the sender gave the message, if it has another one now; empty if it has its own."""
    recorded = found.get(names.MESSAGE_ID)
    now = section.message_id_text(payload, section.message_id_at(payload, where.properties)) or b""
    first = b"".join(encoded(name) + encoded(str(found[name]).partition(";")[0]) for name in names.HOP_PROPERTIES)
    key = first + encoded(names.DIGEST) + encoded("")
    made = made_message_id(duplicate_key(key, 0, len(key)))
    # An operator who repaired a message may have recorded the made one as the sender's.
    is_made = recorded == made or (recorded is None and now == made.encode())
    if is_made and is_first:
        return {"message_id": None}
    return {} if recorded is None else {"message_id": recorded}


def _id_text(rest: bytes) -> bytes:
    return section.message_id_text(rest, section.message_id_at(rest, section.locate(rest).properties)) or b""


def _with_life(payload: bytes, waited_ms: int) -> bytes:
    """The message with its original time to live: in the other queue, the remaining time began then; at its source it began earlier."""
    start, end = section.locate(payload).header
    header = section.decode_header(payload, (start, end))
    if not header.ttl_ms:
        return payload
    ttl_ms = min(header.ttl_ms + waited_ms, TTL_LIMIT_MS)
    return section.encode_header(header._replace(ttl_ms=ttl_ms)) + payload[end:]


def _own(payload: bytes) -> dict[str, Any]:
    """The readable properties of provenance and of the diverting."""
    where = section.locate(payload).application_properties
    asked = (*names.OWN_PROPERTIES, names.WHY_ROUTE)
    found = {name: section.map_value(payload, where, name) for name in asked}
    return {name: value for name, value in found.items() if value is not None}


def _provenance(found: Mapping[str, Any]) -> Provenance | None:
    return Provenance.read({**found, names.DIGEST: digest(b"", b"")}, b"", b"")


def _body(payload: bytes, where: section.Sections) -> bytes:
    start = where.body[0] or where.footer[0]
    return section.contents(payload, start, max(where.body[1], where.footer[1])) if start else b""
