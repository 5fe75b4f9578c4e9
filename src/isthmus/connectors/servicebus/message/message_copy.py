"""The general copy of a message: sections of any encoding, any of them absent, and any policy.

What it is: the path of `MessageRewriter` where its fast path does not apply: the application properties are parsed, provenance
is read, the decision is made which messages are not forwarded, the copy policy is applied, and the sections are joined again. What it
is not: the fast path, nor the front of a message (`front`).
Specification: OASIS AMQP 1.0 part 3; docs/explanation/guarantees.md.

Invariants:
    I1. The sender's sections are kept byte for byte; of properties, annotations and application properties only those change that
        mark, provenance and the policy name.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from isthmus.amqp import codec, section
from isthmus.amqp.codec import value_end
from isthmus.connectors.servicebus.message.front import (
    MAP32,
    U32,
    FrontReader,
    Head,
    annotations_of,
    with_partition_key,
)
from isthmus.message import Provenance, Tail, digest, duplicate_key, made_message_id
from isthmus.message import name as names
from isthmus.message.copy_policy import CopyPolicy
from isthmus.message.lifetime import DEADLINE_PASSED, deadline_text, life_ms, milliseconds
from isthmus.message.provenance import encoded

__all__ = [
    "COPIED",
    "HOPS_USED_UP",
    "NUMBER_ONE",
    "TAIL_COUNT",
    "VISITED",
    "Identity",
    "Mark",
    "MessageCopy",
    "Verdict",
]

HOPS_USED_UP = "HopBudgetUsedUp"
VISITED = "Visited"
COPIED = "Copied"

NUMBER_ONE = codec.encode(1)
TAIL_COUNT = 2 * len(names.HOP_PROPERTIES) + 2
"""Keys and values of the properties that a copy gets: those of a hop, and the digest."""

_OWN = frozenset(name.encode() for name in names.OWN_PROPERTIES)
_RULE_NAME = names.RULE_NAME.encode()
_WHY = {
    names.DEAD_LETTER_REASON.encode(): names.WHY_REASON,
    names.DEAD_LETTER_DESCRIPTION.encode(): names.WHY_DESCRIPTION,
}
_EARLIER = (names.WHY_REASON, names.WHY_DESCRIPTION, names.WHY_SOURCE)

Verdict = tuple[str, str, str]
"""The outcome of a message that is not forwarded: disposition, reason, description."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The application property by which a task's rules exclude the task's own copies.

    Attributes:
        name: the property's.
        is_number: whether its value is the number 1, as in guides to federation; otherwise it is the copy's MessageId
            as text, so that another message that has a copy's properties does not count as a copy.
    """

    name: str
    is_number: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The entities between which a route's copies are sent, and what they record of them; as in `MessageRewriter`."""

    origin: str
    target: str
    target_namespace: str
    entity: str
    hop_budget: int
    mark: Mark | None
    makes_message_ids: bool
    trusts: bool


class MessageCopy:
    """Copies messages on the general path.

    Args:
        identity: the route's.
        policy: the route's.
        tail: writes provenance.
        fronts: reads fronts.

    Attributes:
        looped: messages stopped because they would return.
    """

    def __init__(self, identity: Identity, policy: CopyPolicy, tail: Tail, fronts: FrontReader) -> None:
        self.looped = 0
        self._identity = identity
        self._policy = policy
        self._tail = tail
        self._fronts = fronts
        mark = identity.mark
        self._mark_key = encoded(mark.name) if mark is not None else b""
        self._mark_name = mark.name.encode() if mark is not None else b""
        self._set = [encoded(name) + codec.encode(value) for name, value in policy.properties.items()]
        removed = {name.encode() for name in (*policy.removed, *policy.properties)}
        if policy.keeps_dead_letter:
            removed |= _WHY.keys() | {name.encode() for name in (*_EARLIER, names.WHY_ROUTE)}
        self._removed = frozenset(removed)

    def make(self, b: bytes, start: int, end: int, now_ms: int) -> bytes | Verdict:
        """The copy of the message at `start`, or why there is none."""
        identity, policy = self._identity, self._policy
        head = self._fronts.read(b, start, end)
        p = head.end
        properties = p, p
        if p < end and b[p + 2] == 0x73:
            p = value_end(b, p + 3)
            properties = properties[0], p
        found = _Found(b, p, end, self._mark_name, self._removed, keeps_own=not identity.origin)
        id_at = section.message_id_at(b, properties) if properties[1] > properties[0] else 0
        message_id = section.message_id_text(b, id_at)
        body = section.contents(b, found.end, end)
        before = found.provenance(message_id, body, proven=identity.trusts)
        verdict = self._stop(before, found.mark, message_id)
        if verdict is not None:
            return verdict
        header = self._header(head, before, now_ms)
        if header is None:
            return "dead-letter", DEADLINE_PASSED, deadline_text(policy)
        encoded_properties, annotations = b[slice(*properties)], head.annotations
        if policy.session_from or policy.partition_from:
            encoded_properties, annotations = self._keyed(b, properties, head)
        pairs = list(self._set)
        if policy.keeps_dead_letter:
            pairs += _why(found, head)
        count = found.count + 2 * len(pairs)
        if identity.origin:
            proof = "" if identity.trusts else digest(message_id or b"", body)
            if found.rule and policy.dead_letters_returning:
                # Messages that rules of an application's subscription made of one have its number, time, MessageId and body.
                proof = digest(found.rule, proof.encode())
            tail = self._tail.joined(before, head.sequence, head.enqueued_ms, proof)
            sender_id = None if before is None else found.values.get(names.MESSAGE_ID)
            # Without its own number no unique MessageId can be made.
            if head.sequence and (identity.makes_message_ids or message_id is None):
                if sender_id is None and id_at:
                    sender_id = codec.decode(b, id_at)[0]
                made = self._made_message_id(tail)
                encoded_properties = _with_fields(encoded_properties, {"message_id": made})
                message_id = made.encode()
            if identity.mark is not None:
                pairs += [self._mark_key, self._mark_value(message_id)]
                count += 2
            pairs += [tail, self._tail.digest, digest(message_id or b"", body).encode()]
            count += TAIL_COUNT
            if sender_id is not None:
                pairs += [encoded(names.MESSAGE_ID), codec.encode(sender_id)]
                count += 2
        kept, extra = found.kept, b"".join(pairs)
        own = MAP32(b"\0St\xd1", len(kept) + len(extra) + 4, count) if count else b""
        return b"".join(
            (
                header,
                head.delivery,
                annotations_of(annotations),
                encoded_properties,
                own,
                kept,
                extra,
                b[found.end : end],
            )
        )

    def _header(self, head: Head, before: Provenance | None, now_ms: int) -> bytes | None:
        """The copy's header with the remaining TimeToLive; None where it has expired."""
        if not head.ttl_ms and not self._fronts.is_timed:
            return head.header
        first_ms = milliseconds(before.hops[0].enqueued) if before is not None else head.first_ms
        left_ms = life_ms(
            self._policy, ttl_ms=head.ttl_ms, enqueued_ms=head.enqueued_ms, first_ms=first_ms, now_ms=now_ms
        )
        return None if left_ms is None else head.header[:-4] + U32.pack(left_ms)

    def _keyed(self, b: bytes, properties: tuple[int, int], head: Head) -> tuple[bytes, tuple[bytes, ...]]:
        """Properties and annotations with SessionId or PartitionKey according to the policy."""
        encoded_properties = b[slice(*properties)]
        fields = section.decode_properties(b, properties) if encoded_properties else {}
        session = fields.get("group_id")
        partition = codec.decode(head.partition_key, 0)[0] if head.partition_key else None
        annotations = head.annotations
        if self._policy.session_from == "partition-key" and isinstance(partition, str) and partition:
            encoded_properties = _with_fields(encoded_properties, {"group_id": partition})
        elif self._policy.partition_from == "session-id" and isinstance(session, str) and session:
            annotations = with_partition_key(annotations, session)
        return encoded_properties, annotations

    def _made_message_id(self, tail: bytes) -> str:
        key = tail + self._tail.digest
        return made_message_id(duplicate_key(key, 0, len(key)))

    def _mark_value(self, message_id: bytes | None) -> bytes:
        mark = self._identity.mark
        return NUMBER_ONE if mark is not None and mark.is_number else _string(message_id or b"")

    def _stop(self, before: Provenance | None, mark: bytes, message_id: bytes | None) -> Verdict | None:
        """The outcome of a copy that must not be forwarded; None: it may be."""
        identity = self._identity
        if before is None:
            return None
        if identity.target and before.visited(identity.target_namespace, identity.entity):
            self.looped += 1
            disposition = "dead-letter" if self._policy.dead_letters_returning else "complete"
            return disposition, VISITED, f"the message has been in '{identity.target}'"
        if mark and message_id and mark == self._mark_key + _string(message_id):
            self.looped += 1
            return "complete", COPIED, "this task has copied the message to every member"
        if len(before.hops) >= identity.hop_budget:
            path = ";".join(f"{hop.alias}/{hop.entity}" for hop in before.hops)
            return "dead-letter", HOPS_USED_UP, f"{len(before.hops)} hops: {path}"
        return None


class _Found:
    """The parsed application properties of a message; the sender's stay encoded.

    Attributes:
        kept: the encoded pairs that are kept: without `RuleName`, the mark, removed properties, and provenance unless it is kept.
        count: the number of keys and values in `kept`.
        values: provenance as far as it is readable.
        removed: encoded values of removed properties, by name.
        rule: the encoded value of `RuleName`; empty where there is none.
        mark: the encoded pair of the task's mark; empty where there is none.
        end: the section's end, or where it would begin.
    """

    __slots__ = ("count", "end", "kept", "mark", "removed", "rule", "values")

    def __init__(
        self, b: bytes, start: int, end: int, mark_name: bytes, removed: frozenset[bytes], *, keeps_own: bool
    ) -> None:
        self.kept = self.mark = self.rule = b""
        self.count = 0
        self.values: dict[str, Any] = {}
        self.removed: dict[bytes, bytes] = {}
        self.end = start
        if start >= end or b[start + 2] != 0x74:
            return
        self.end = value_end(b, start + 3)
        kept: list[bytes] = []
        for key, value, after in section.map_items(b, (start, self.end)):
            name = b[key + 2 : value] if b[key] == 0xA1 else b[key + 5 : value]
            is_own = name in _OWN
            if is_own:
                with suppress(codec.CodecError):
                    self.values[name.decode()] = codec.decode(b, value)[0]
            elif mark_name and name == mark_name:
                self.mark = b[key:after]
                continue
            elif name == _RULE_NAME:
                self.rule = b[value:after]
            if name in removed:
                self.removed[name] = b[value:after]
                continue
            if name == _RULE_NAME or (is_own and not keeps_own):
                continue
            kept.append(b[key:after])
        self.kept, self.count = b"".join(kept), 2 * len(kept)

    def provenance(self, message_id: bytes | None, body: bytes, *, proven: bool) -> Provenance | None:
        """The message's provenance; None where it is not proven."""
        if names.ORIGIN not in self.values:
            return None
        values: Mapping[str, Any] = self.values
        if proven:
            values = {**values, names.DIGEST: digest(message_id or b"", body)}
        return Provenance.read(values, message_id or b"", body)


def _why(found: _Found, head: Head) -> list[bytes]:
    """The encoded pairs with reason and source of the dead-lettering; otherwise the pairs of an earlier one."""
    pairs = [encoded(ours) + found.removed[theirs] for theirs, ours in _WHY.items() if theirs in found.removed]
    if head.dead_letter_source:
        pairs.append(encoded(names.WHY_SOURCE) + head.dead_letter_source)
    return pairs or [
        encoded(ours) + found.removed[ours.encode()] for ours in _EARLIER if ours.encode() in found.removed
    ]


def _string(raw: bytes) -> bytes:
    """An AMQP string of a sender's bytes, readable or not."""
    return b"\xa1%c%b" % (len(raw), raw) if len(raw) < 256 else b"\xb1" + U32.pack(len(raw)) + raw


def _with_fields(encoded_properties: bytes, fields: Mapping[str, Any]) -> bytes:
    """The properties section with other values of some fields."""
    where = 0, len(encoded_properties)
    present = section.decode_properties(encoded_properties, where) if encoded_properties else {}
    return section.encode_properties({**present, **fields})
