"""A message as it goes on to its target, made from its encoded bytes without decoding it.

What it is: `MessageRewriter` cuts the source broker's own annotations and `RuleName` out, puts provenance and the task's mark in,
recomputes what is left of TimeToLive, and leaves body, footer and every property of the sender as they are, to the
byte. It also tells which messages must not go: copies that would return to an entity that they have been in, copies that
this task has made already, and those that have used up their hops. What it is not: a transform of contents; it reads no
body but for its digest.
Specification: OASIS AMQP 1.0 part 3; docs/explanation/guarantees.md.
Over 400 lines: the hot path is written out section by section, without calls in between.

Invariants:
    I1. The sections that the sender wrote come out byte for byte; of the application properties only `RuleName`, the mark
        and the properties of provenance change.
    I2. The first value of each hop property is the message's identity and never changes on its way.
    I3. A copy never goes to an entity that is among its hops.
    I4. A message with a TimeToLive goes on with what is left of it by its broker's clock, at least 1 ms, so that the target
        expires it openly.
    I5. A message is stopped only as the copy that its provenance proves it to be (`isthmus.message.provenance`, I1): with
        another MessageId or body it is new, and its provenance begins here.
    I6. Every copy bears the task's mark, whether the rule of its source has set one or not.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha1
from typing import Any, NamedTuple

from isthmus.amqp import codec, section
from isthmus.amqp.codec import WIDTH, value_end
from isthmus.connectors.servicebus.sequence import ONLY_LOCK_TOKEN, UNREADABLE
from isthmus.message import Provenance, Tail, digest, duplicate_key, made_message_id
from isthmus.message import name as names
from isthmus.message.provenance import OFFSET_DIGITS, encoded

__all__ = ["COPIED", "DEFAULT_HOP_BUDGET", "HOPS_USED_UP", "MALFORMED", "VISITED", "Mark", "Refused", "MessageRewriter"]

DEFAULT_HOP_BUDGET = 8
HOPS_USED_UP = "HopBudgetUsedUp"
MALFORMED = "Malformed"
VISITED = "Visited"
COPIED = "Copied"

_BROKER_ANNOTATIONS = frozenset(name.encode() for name in names.BROKER_ANNOTATIONS)
_SEQUENCE, _TOPIC_SEQUENCE, _ENQUEUED = (
    names.SEQUENCE_NUMBER.encode(),
    names.ENQUEUE_SEQUENCE.encode(),
    names.ENQUEUED_TIME.encode(),
)
_LOCK_TOKEN = names.LOCK_TOKEN.encode()
_OWN = frozenset(name.encode() for name in names.OWN_PROPERTIES)
_MAP32 = struct.Struct(">4sII").pack
_U32 = struct.Struct(">I")
_RULE_NAME_TEXT = names.RULE_NAME.encode()
_RULE_NAME = encoded(names.RULE_NAME)
_SIZE_COUNT = struct.Struct(">II").unpack_from
_U32_AT = struct.Struct(">I").unpack_from
# Keys and values of the properties that a copy gets: those of a hop, and the digest.
_TAIL_COUNT = 2 * len(names.HOP_PROPERTIES) + 2
_I64 = struct.Struct(">q").unpack_from
_CACHE_LIMIT = 4096
_NUMBER_ONE = codec.encode(1)
# The number 1 as brokers write it.
_ONES = (_NUMBER_ONE, b"\x54\x01", b"\x71\0\0\0\1", b"\x81\0\0\0\0\0\0\0\1")


class Refused(NamedTuple):
    """A message that is not sent on: `disposition` is what becomes of it at its source."""

    row: int
    disposition: str
    reason: str
    description: str


class _Front:
    """How a message begins, up to its properties: constant bytes and 8-byte numbers by turns.

    Attributes:
        size: how long it is.
        unpack: takes it apart into constants (even places) and numbers (odd places).
        constants: what the even places must be.
        identity: place of the sequence number, or of the topic's where there is one.
        enqueued: place of the time of enqueueing.
        out: what the copy begins with.
        ttl_ms: its TimeToLive, 0 for none; it stands at `ttl_at` in `out`.
    """

    __slots__ = ("constants", "enqueued", "identity", "out", "size", "ttl_at", "ttl_ms", "unpack")

    def __init__(
        self, layout: struct.Struct, raw: bytes, places: dict[bytes, int], out: bytes, ttl_ms: int, ttl_at: int
    ):
        self.size = layout.size
        self.unpack = layout.unpack_from
        self.constants = layout.unpack(raw)[0::2]
        self.identity = places.get(_TOPIC_SEQUENCE) or places[_SEQUENCE]
        self.enqueued = places[_ENQUEUED]
        self.out = out
        self.ttl_ms = ttl_ms
        self.ttl_at = ttl_at

    @classmethod
    def learn(cls, raw: bytes, slots: list[tuple[int, bytes]], out: bytes, ttl_ms: int, ttl_at: int) -> _Front | None:
        """From a message's front and the places of its numbers; None where sequence number or time is missing."""
        layout, at = ">", 0
        places: dict[bytes, int] = {}
        for number, (slot, name) in enumerate(slots):
            layout += f"{slot - at}sq"
            places[name] = 2 * number + 1
            at = slot + 8
        if _SEQUENCE not in places or _ENQUEUED not in places:
            return None
        return cls(struct.Struct(layout + f"{len(raw) - at}s"), raw, places, out, ttl_ms, ttl_at)


@dataclass(frozen=True, slots=True)
class Mark:
    """The application property by which a task's rules leave out the task's own copies.

    Attributes:
        name: the property's.
        is_number: whether its value is the number 1, as the guides to federation have it; else it is the copy's MessageId
            as text, so that another message that bears a copy's properties is no copy.
    """

    name: str
    is_number: bool = False


class MessageRewriter:
    """Makes copies.

    Args:
        origin: alias of the source namespace and entity, e.g. `ewr/flights`; empty: add no provenance.
        target: alias of the target namespace; empty: do not look for loops.
        hop_budget: how many copies of copies a message may become.
        origin_namespace: identity of the source namespace; empty: its alias.
        target_namespace: identity of the target namespace; empty: its alias.
        entity: the target's queue or topic; empty: as the source's.
        mark: what every copy is marked with; None: no mark.
        makes_message_ids: whether a copy's MessageId is made of its duplicate key, for a target that keeps no keys.
        trusts: whether provenance counts though its digest does not fit, since steps of the route change contents.

    Attributes:
        looped: messages held back because they would return.
    """

    def __init__(
        self,
        origin: str,
        target: str = "",
        hop_budget: int = DEFAULT_HOP_BUDGET,
        *,
        origin_namespace: str = "",
        target_namespace: str = "",
        entity: str = "",
        mark: Mark | None = None,
        makes_message_ids: bool = False,
        trusts: bool = False,
    ) -> None:
        alias, _, source_entity = origin.partition("/")
        self.origin = origin
        self.target = target
        self.hop_budget = hop_budget
        self.mark = mark
        self.makes_message_ids = makes_message_ids
        self.looped = 0
        self._target_namespace = target_namespace or target
        self._entity = entity or source_entity
        self._trusts = trusts
        self._tail = Tail(origin, origin_namespace or alias)
        self._mark_key = encoded(mark.name) if mark is not None else b""
        self._mark_name = mark.name.encode() if mark is not None else b""
        self._headers: dict[bytes, tuple[bytes, int]] = {}
        self._front: _Front | None = None

    def copy_all(self, data: bytes, offsets: list[int], now_ms: int) -> tuple[list[bytes], list[Refused]]:
        """The copies of `data[offsets[i]:offsets[i + 1]]`, in order, and those that must not go.

        Args:
            data: encoded messages, one behind the other.
            offsets: where each starts, and where the last ends.
            now_ms: wall time of the broker that the messages come from, for what is left of TimeToLive.
        """
        copies: list[bytes] = []
        refused: list[Refused] = []
        add = copies.append
        find = data.find
        tail = self._tail
        first, offset_key, digest_key, time_of = tail.first, tail.offset, tail.digest, tail.time
        mark_key = self._mark_key
        marks_number = self.mark is not None and self.mark.is_number
        quick = bool(self.origin) and not self.makes_message_ids
        tells_content = not self._trusts
        start = offsets[0]
        front = self._front
        for index in range(1, len(offsets)):
            end = offsets[index]
            # The rule: the front is like the last message's, a MessageId that is a short string stands, application
            # properties are small and name neither a hop nor, unless it is a number, the mark, and the body is one data
            # section. Everything else takes the general way.
            if quick and front is not None and end - start > front.size + 8:
                fields = front.unpack(data, start)
                if fields[0::2] == front.constants:
                    p = start + front.size
                    q = p + 5 + data[p + 4]
                    if data[p : p + 4] == b"\0Ss\xc0" and data[p + 6] == 0xA1 and data[p + 5] and q + 6 < end:
                        mark = data[q : q + 4]
                        if mark == b"\0St\xc1":
                            e, pairs, count = q + 5 + data[q + 4], q + 6, data[q + 5]
                        elif mark == b"\0St\xd1":
                            size, count = _SIZE_COUNT(data, q + 4)
                            e, pairs = q + 8 + size, q + 12
                        else:
                            e = pairs = q
                            count = 0
                        kept = data[pairs:e]
                        if find(b"repl-", pairs, e) >= 0:
                            count = -1
                        elif find(_RULE_NAME, pairs, e) >= 0:
                            kept, count = _without_rule_name(data, pairs, e, count)
                        own = b""
                        id_end = p + 8 + data[p + 7]
                        if mark_key and count >= 0:
                            own_at = find(mark_key, pairs, e)
                            if own_at < 0:
                                own = mark_key + (_NUMBER_ONE if marks_number else data[p + 6 : id_end])
                                count += 2
                            elif not marks_number or not data.startswith(_ONES, own_at + len(mark_key)):
                                count = -1  # it is another value, or not a name at all
                        body = data[e : e + 4]
                        if body == b"\0Su\xa0":
                            at = e + 5
                            size = data[e + 4]
                        elif body == b"\0Su\xb0":
                            at = e + 8
                            size = _U32_AT(data, e + 4)[0]
                        else:
                            at, size = e, -1
                        if count >= 0 and at + size == end:
                            number = offset = b"%d" % fields[front.identity]
                            enqueued = fields[front.enqueued]
                            # As `isthmus.message.digest` has it.
                            hashed = sha1(b"%b\0%b" % (data[p + 8 : id_end], data[at:end]), usedforsecurity=False)
                            proof = hashed.hexdigest()[:16].encode()
                            if tells_content:
                                offset = b"%b-%b" % (number, proof[:OFFSET_DIGITS])
                            extra = b"%b%b\xa1%c%b%b\xa1%c%b%b%b%b" % (
                                own,
                                first,
                                len(number),
                                number,
                                offset_key,
                                len(offset),
                                offset,
                                time_of(enqueued),
                                digest_key,
                                proof,
                            )
                            add(
                                b"".join(
                                    (
                                        front.out if not front.ttl_ms else self._with_ttl(front, enqueued, now_ms),
                                        data[p:q],
                                        _MAP32(b"\0St\xd1", len(kept) + len(extra) + 4, count + _TAIL_COUNT),
                                        kept,
                                        extra,
                                        data[e:end],
                                    )
                                )
                            )
                            start = end
                            continue
            made: bytes | tuple[str, str, str]
            try:
                made = self._copy(data, start, end, now_ms)
            except UNREADABLE as error:
                made = "dead-letter", MALFORMED, str(error)
            front = None
            with suppress(*UNREADABLE):
                front = self._learn_front(data, start, end)
            self._front = front
            if isinstance(made, bytes):
                add(made)
            else:
                refused.append(Refused(index - 1, *made))
            start = end
        return copies, refused

    def copy(self, message: bytes, now_ms: int) -> bytes | Refused:
        """The copy of one message, or why there is none."""
        copies, refused = self.copy_all(message, [0, len(message)], now_ms)
        return copies[0] if copies else refused[0]

    def _with_ttl(self, front: _Front, enqueued: int, now_ms: int) -> bytes:
        left = max(1, front.ttl_ms - max(0, now_ms - enqueued))
        return front.out[: front.ttl_at] + _U32.pack(left) + front.out[front.ttl_at + 4 :]

    def _learn_front(self, b: bytes, start: int, end: int) -> _Front | None:
        """How header and annotations of this message look, for those that follow it."""
        head, delivery, annotations, ttl_ms, p = self._front_of(b, start, end, [], [])
        if delivery or p - start > 0xFFFF:
            return None
        slots: list[tuple[int, bytes]] = []
        token = value_end(b, start + 3) if b[start + 2] == 0x70 else start
        if b.startswith(ONLY_LOCK_TOKEN, token):  # another one in each message: two numbers that nobody reads
            token += len(ONLY_LOCK_TOKEN) - start
            slots += [(token, b"token"), (token + 8, b"token's end")]
        sections = section.locate(b, start, end)
        for key, value, after in section.map_items(b, sections.message_annotations):
            name = b[key + 2 : value]
            if name not in _BROKER_ANNOTATIONS:
                continue
            if b[value] not in (0x81, 0x83) or b[key] != 0xA3:
                return None
            slots.append((after - 8 - start, name))
        return _Front.learn(b[start:p], slots, head + annotations, ttl_ms, len(head) - 4)

    def _front_of(
        self, b: bytes, p: int, end: int, sequences: list[int], times: list[int]
    ) -> tuple[bytes, bytes, bytes, int, int]:
        """Header, delivery annotations and message annotations as they go on, TimeToLive in ms, and where they end.

        The numbers found are appended: to `sequences` the sequence number, but the topic's first; to `times` the time of
        enqueueing.
        """
        head = delivery = annotations = b""
        ttl_ms = 0
        if b[p + 2] == 0x70:
            e = value_end(b, p + 3)
            raw = b[p:e]
            known = self._headers.get(raw)
            head, ttl_ms = known if known is not None else self._learn_header(raw)
            p = e
        if p < end and b[p + 2] == 0x71:
            e = value_end(b, p + 3)
            delivery = _delivery_annotations(b, p, e)
            p = e
        if p < end and b[p + 2] == 0x72:
            e = value_end(b, p + 3)
            kept: list[bytes] = []
            for key, value, after in section.map_items(b, (p, e)):
                name = b[key + (2 if b[key] in (0xA3, 0xA1) else 5) : value]
                if name not in _BROKER_ANNOTATIONS:
                    kept.append(b[key:after])
                elif name == _SEQUENCE:
                    sequences.append(_integer(b, value))
                elif name == _TOPIC_SEQUENCE:
                    sequences.insert(0, _integer(b, value))
                elif name == _ENQUEUED:
                    times.append(_integer(b, value))
            if kept:
                joined = b"".join(kept)
                annotations = _MAP32(b"\0Sr\xd1", len(joined) + 4, 2 * len(kept)) + joined
            p = e
        return head, delivery, annotations, ttl_ms, p

    def _copy(self, b: bytes, p: int, end: int, now_ms: int) -> bytes | tuple[str, str, str]:
        """The general way: sections of any encoding, any of them absent."""
        sequences: list[int] = []
        times: list[int] = []
        head, delivery, annotations, ttl_ms, p = self._front_of(b, p, end, sequences, times)
        identity = sequences[0] if sequences else 0
        enqueued = times[0] if times else 0
        if ttl_ms:
            left = max(1, ttl_ms - max(0, now_ms - enqueued)) if enqueued else ttl_ms
            head = head[:-4] + _U32.pack(left)
        properties = p, p
        if p < end and b[p + 2] == 0x73:
            p = value_end(b, p + 3)
            properties = properties[0], p
        found = _Found(b, p, end, self._mark_name, keeps_own=not self.origin)
        id_at = section.message_id_at(b, properties) if properties[1] > properties[0] else 0
        message_id = section.message_id_text(b, id_at)
        body = section.contents(b, found.end, end)
        before = found.provenance(message_id, body, proven=self._trusts)
        verdict = self._stop(before, found.mark, message_id)
        if verdict is not None:
            return verdict
        encoded_properties = b[slice(*properties)]
        extra, count = b"", found.count
        if self.origin:
            proof = "" if self._trusts else digest(message_id or b"", body)
            tail = self._tail.joined(before, identity, enqueued, proof)
            sender_id = None if before is None else found.values.get(names.MESSAGE_ID)
            # Without a number of its own there is nothing to make a MessageId of that no other message has.
            if identity and (self.makes_message_ids or message_id is None):
                if sender_id is None and id_at:
                    sender_id = codec.decode(b, id_at)[0]
                made = self._made_message_id(tail)
                encoded_properties = _with_message_id(b, properties, made)
                message_id = made.encode()
            pairs = [] if self.mark is None else [self._mark_key, self._mark_value(message_id)]
            pairs += [tail, self._tail.digest, digest(message_id or b"", body).encode()]
            count += _TAIL_COUNT + (2 if self.mark is not None else 0)
            if sender_id is not None:
                pairs += [encoded(names.MESSAGE_ID), codec.encode(sender_id)]
                count += 2
            extra = b"".join(pairs)
        kept = found.kept
        own = _MAP32(b"\0St\xd1", len(kept) + len(extra) + 4, count) if count else b""
        return b"".join((head, delivery, annotations, encoded_properties, own, kept, extra, b[found.end : end]))

    def _made_message_id(self, tail: bytes) -> str:
        key = tail + self._tail.digest
        return made_message_id(duplicate_key(key, 0, len(key)))

    def _mark_value(self, message_id: bytes | None) -> bytes:
        return _NUMBER_ONE if self.mark is not None and self.mark.is_number else _string(message_id or b"")

    def _stop(self, before: Provenance | None, mark: bytes, message_id: bytes | None) -> tuple[str, str, str] | None:
        """What becomes of a copy that must not go on; None: it may."""
        if before is None:
            return None
        if self.target and before.visited(self._target_namespace, self._entity):
            self.looped += 1
            return "complete", VISITED, f"the message has been in '{self.target}'"
        if mark and message_id and mark == self._mark_key + _string(message_id):
            self.looped += 1
            return "complete", COPIED, "this task has copied the message to every member"
        if len(before.hops) >= self.hop_budget:
            path = ";".join(f"{hop.alias}/{hop.entity}" for hop in before.hops)
            return "dead-letter", HOPS_USED_UP, f"{len(before.hops)} hops: {path}"
        return None

    def _learn_header(self, raw: bytes) -> tuple[bytes, int]:
        """The header without the source's delivery count, and its TimeToLive in ms (0: none) in its last 4 bytes."""
        header = section.decode_header(raw, (0, len(raw)))
        fields = [b"\x41" if header.durable else b"\x42", b"\x50" + bytes((header.priority,))]
        ttl_ms = header.ttl_ms or 0
        if ttl_ms and ttl_ms < 0xFFFFFFFF:
            fields.append(b"\x70" + _U32.pack(ttl_ms))
        else:
            ttl_ms = 0
        made = (b"\0Sp" + codec.encode_list(fields), ttl_ms)
        if len(self._headers) >= _CACHE_LIMIT:
            self._headers.clear()
        self._headers[raw] = made
        return made


def _integer(b: bytes, at: int) -> int:
    code = b[at]
    if code in (0x81, 0x83, 0x80):
        number: int = _I64(b, at + 1)[0]
        return number
    found, _ = codec.decode(b, at)
    return found if isinstance(found, int) else 0


def _delivery_annotations(b: bytes, start: int, end: int) -> bytes:
    """The sender's delivery annotations; the broker's lock token is not among them."""
    if b.startswith(ONLY_LOCK_TOKEN, start) and end - start == len(ONLY_LOCK_TOKEN) + 16:
        return b""  # as every locked message has it
    items = section.map_items(b, (start, end))
    kept = [b[key:after] for key, value, after in items if b[key + 2 : value] != _LOCK_TOKEN]
    if not kept:
        return b""
    joined = b"".join(kept)
    return _MAP32(b"\0Sq\xd1", len(joined) + 4, 2 * len(kept)) + joined


def _without_rule_name(b: bytes, start: int, end: int, count: int) -> tuple[bytes, int]:
    """The pairs of a map without `RuleName`; the walk makes sure that the name is a key, and not within a value."""
    width = WIDTH
    at = start
    while at < end:
        if b[at] == 0xA1:
            value = at + 2 + b[at + 1]
            if b[at:value] == _RULE_NAME:
                return b[start:at] + b[value_end(b, value) : end], count - 2
        else:
            value = value_end(b, at)
        size = width[b[value]]
        at = value + size if 0 < size < 254 else value + 2 + b[value + 1] if size == 0 else value_end(b, value)
    return b[start:end], count


class _Found:
    """The application properties of a message, taken apart; all of the sender's stay as encoded.

    Attributes:
        kept: the encoded pairs that stay: without `RuleName`, the mark, and provenance unless that is to stay.
        count: of the keys and values in `kept`.
        values: provenance as far as it can be read.
        mark: the encoded pair of the task's mark; empty where there is none.
        end: where the section ends, or would begin.
    """

    __slots__ = ("count", "end", "kept", "mark", "values")

    def __init__(self, b: bytes, start: int, end: int, mark_name: bytes, *, keeps_own: bool) -> None:
        self.kept = self.mark = b""
        self.count = 0
        self.values: dict[str, Any] = {}
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
            elif name == mark_name:
                self.mark = b[key:after]
                continue
            if name == _RULE_NAME_TEXT or (is_own and not keeps_own):
                continue
            kept.append(b[key:after])
        self.kept, self.count = b"".join(kept), 2 * len(kept)

    def provenance(self, message_id: bytes | None, body: bytes, *, proven: bool) -> Provenance | None:
        """Where the message has been; None where nothing proves it."""
        if names.ORIGIN not in self.values:
            return None
        values: Mapping[str, Any] = self.values
        if proven:
            values = {**values, names.DIGEST: digest(message_id or b"", body)}
        return Provenance.read(values, message_id or b"", body)


def _string(raw: bytes) -> bytes:
    """An AMQP string of bytes that a sender wrote as one, readable or not."""
    return b"\xa1%c%b" % (len(raw), raw) if len(raw) < 256 else b"\xb1" + _U32.pack(len(raw)) + raw


def _with_message_id(b: bytes, where: tuple[int, int], message_id: str) -> bytes:
    """The properties section with another MessageId."""
    fields = section.decode_properties(b, where) if where[1] > where[0] else {}
    return section.encode_properties({**fields, "message_id": message_id})
