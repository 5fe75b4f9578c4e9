"""Messages in the form that a broker accepts.

What it is: a new header, additional application properties, and the copies of a route. What it is not: provenance or policies, which
`isthmus.connectors.servicebus.message.message_rewriter` makes for every target.
Specification: OASIS AMQP 1.0 part 3: sections for one hop (header, delivery annotations) are not forwarded; message annotations, which
contain fields of another broker or client library (`x-opt-jms-*`), and all later sections are.

Invariants:
    I1. Message annotations, properties, body and footer are kept byte for byte; of Service Bus's annotations only the sender's are kept.
    I2. A copy has no delivery count, no first-acquirer and no delivery annotations.
    I3. Bytes that are not an AMQP message are not sent.
    I4. A copy for duplicate detection has the same number each time that it is made.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from isthmus.amqp import codec, section
from isthmus.amqp.codec import CodecError, value_end
from isthmus.bridge.delivery_event import Disposition
from isthmus.bridge.port import Copies
from isthmus.connectors.amqp.option import TargetOptions
from isthmus.connectors.servicebus.message.front import MAP32
from isthmus.connectors.servicebus.message.message_rewriter import MALFORMED, Mark, MessageRewriter
from isthmus.message import duplicate_key, made_message_id
from isthmus.message import name as names
from isthmus.message.copy_policy import CopyPolicy
from isthmus.message.provenance import encoded

__all__ = ["DUPLICATE_ID", "Copier", "with_header", "with_properties"]

DUPLICATE_ID = "_AMQ_DUPL_ID"
"""The property by which ActiveMQ Artemis detects a duplicate (its documentation, "Duplicate Message Detection")."""

_CACHE_LIMIT = 4096
_HEADERS: dict[tuple[bytes, bool], bytes] = {}
_BROKERS_OWN = re.compile(b"|".join(re.escape(each.encode()) for each in sorted(names.BROKER_ANNOTATIONS)))


def with_header(message: bytes, *, durable: bool) -> bytes:
    """A message with a new header, durable if requested, with the same priority and time to live; without delivery
    annotations.

    Raises:
        CodecError: it cannot be read.
    """
    start = value_end(message, 3) if message.startswith(b"\0Sp") else 0
    rest = value_end(message, start + 3) if message.startswith(b"\0Sq", start) else start
    if not start and not durable:
        return message[rest:] if rest else message
    return _header(message[:start], durable) + message[rest:]


def _header(raw: bytes, durable: bool) -> bytes:
    known = _HEADERS.get((raw, durable))
    if known is None:
        header = section.decode_header(raw, (0, len(raw)))
        fields = [b"\x41" if durable or header.durable else b"\x42"]
        if header.ttl_ms is not None or header.priority != 4:
            fields.append(b"\x50" + bytes((header.priority,)))
        if header.ttl_ms is not None:
            fields.append(b"\x70" + header.ttl_ms.to_bytes(4, "big"))
        known = b"\0Sp" + codec.encode_list(fields)
        if len(_HEADERS) >= _CACHE_LIMIT:
            _HEADERS.clear()
        _HEADERS[raw, durable] = known
    return known


def with_properties(message: bytes, values: Mapping[str, str]) -> bytes:
    """A message with these application properties; others of the same names are replaced.

    Raises:
        CodecError: it cannot be read.
    """
    if not values:
        return message
    sections = section.locate(message)
    pairs = [encoded(name) + codec.encode(value) for name, value in values.items()]
    replaced = {name.encode() for name in values}
    for key, value, after in section.map_items(message, sections.application_properties):
        if message[key + (2 if message[key] == 0xA1 else 5) : value] not in replaced:
            pairs.append(message[key:after])
    joined = b"".join(pairs)
    made = MAP32(b"\0St\xd1", len(joined) + 4, 2 * len(pairs)) + joined
    start, end = sections.application_properties
    if not end:
        start = end = (
            sections.body[0] if sections.body[1] else sections.footer[0] if sections.footer[1] else len(message)
        )
    return message[:start] + made + message[end:]


class Copier:
    """Makes the copies of one route.

    Args:
        options: of the target.
        origin_identity: identity of the namespace from which the messages are read; empty where unknown.
        detects: whether the broker detects duplicates by `DUPLICATE_ID`.
    """

    def __init__(self, options: TargetOptions, origin_identity: str, *, detects: bool) -> None:
        self._durable = options.durable
        self._duplicates = options.duplicates if detects else "allow"
        policy = CopyPolicy.from_text(options.policy)
        self._is_plain = not (options.origin or options.target or options.mark) and policy == CopyPolicy()
        self._rewriter = MessageRewriter(
            options.origin,
            options.target,
            options.hop_budget,
            origin_namespace=origin_identity if options.origin else "",
            entity=options.entity,
            mark=Mark(options.mark, is_number=options.mark_value == "number") if options.mark else None,
            makes_message_ids=options.duplicates == "origin",
            trusts=options.trusts_provenance,
            policy=policy,
        )

    def copies(self, data: bytes, offsets: Sequence[int], now_ms: int) -> Copies:
        """The copies of `data[offsets[i]:offsets[i + 1]]`, and the dispositions of messages that are not sent."""
        if len(offsets) < 2:
            return Copies(())
        if self._is_plain:
            made = [self._plain(data[offsets[at] : offsets[at + 1]]) for at in range(len(offsets) - 1)]
            if None not in made:
                return Copies([each for each in made if each is not None])
        copies, stopped = self._rewriter.copy_all(data, list(offsets), now_ms)
        disposed = [(each.row, Disposition(each.disposition, each.reason, each.description)) for each in stopped]
        stopped_rows = {each.row for each in stopped}
        rows = [row for row in range(len(offsets) - 1) if row not in stopped_rows]
        finished, left = [], []
        for row, copy in zip(rows, copies, strict=True):
            try:
                section.locate(copy)
                finished.append(self._known(with_header(copy, durable=self._durable)))
                left.append(row)
            except (CodecError, IndexError) as error:  # a broker may close the connection for it, each time
                disposed.append((row, Disposition("dead-letter", MALFORMED, f"not an AMQP message: {error}")))
        return Copies(finished, disposed, left) if disposed else Copies(finished)

    def _plain(self, message: bytes) -> bytes | None:
        """The copy of a message of which only the header changes; None where more changes, or it cannot be read."""
        try:
            start, end = section.locate(message).message_annotations
            if end and _BROKERS_OWN.search(message, start, end):
                return None
            return self._known(with_header(message, durable=self._durable))
        except (CodecError, IndexError):
            return None

    def _known(self, copy: bytes) -> bytes:
        """With the number by which the broker detects it as a duplicate."""
        how = self._duplicates
        if how == "allow":
            return copy
        sections = section.locate(copy)
        if how == "message-id":
            at = section.message_id_at(copy, sections.properties)
            key = (section.message_id_text(copy, at) or b"").decode(errors="replace")
        else:
            key = _origin_key(copy, sections)
        return with_properties(copy, {DUPLICATE_ID: key}) if key else copy


def _origin_key(copy: bytes, sections: section.Sections) -> str:
    key = duplicate_key(copy, *sections.application_properties)
    return made_message_id(key) if key else ""
