"""A message as it goes on to its target, made from its encoded bytes without decoding it.

What it is: `Splicer` cuts the source broker's own annotations and `RuleName` out, puts the replication properties in,
recomputes what is left of TimeToLive, and leaves body, footer and every property of the sender as they are, to the
byte. It also tells which messages must not go: those that would return to a namespace that they have visited, those that
have used up their hops, and those whose provenance nobody can read. What it is not: a transform of contents; it reads no body.
Spec: AMQP 1.0 part 3; SERVICE-BUS.md W8; FEDERATION.md, row "all" of the patterns.

Provenance, application properties, strings, one value per hop joined by ";":
    repl-origin         alias/entity that the message was copied from
    repl-sequence       its sequence number there (of the topic, for a subscription)
    repl-offset         the same: Service Bus has no other offset
    repl-enqueued-time  when it was enqueued there, ISO 8601, UTC, milliseconds
Over 400 lines: the hot path is written out section by section, without calls in between.

Invariants:
    I1. The sections that the sender wrote come out byte for byte; of the application properties only `RuleName` and the
        `repl-` names change.
    I2. The first value of each `repl-` property is the message's identity and never changes on its way.
    I3. A message never goes to a namespace that is among its origins.
    I4. A message with a TimeToLive goes on with what is left of it by its broker's clock, at least 1 ms, so that the target
        expires it openly.
"""

from __future__ import annotations

import struct
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache
from typing import NamedTuple

from isthmus.amqp import codec, section
from isthmus.amqp.codec import WIDTH, value_end
from isthmus.connectors.servicebus.sequence import UNREADABLE

__all__ = ["BROKER_ANNOTATIONS", "DEFAULT_HOP_BUDGET", "HOPS_USED_UP", "MALFORMED", "Refused", "Splicer"]

DEFAULT_HOP_BUDGET = 8
HOPS_USED_UP = "HopBudgetUsedUp"
MALFORMED = "Malformed"

# What the source's broker says about its own copy; everything else is the sender's and goes on.
BROKER_ANNOTATIONS = frozenset(
    {
        b"x-opt-sequence-number",
        b"x-opt-enqueue-sequence-number",
        b"x-opt-enqueued-time",
        b"x-opt-locked-until",
        b"x-opt-message-state",
        b"x-opt-partition-id",
        b"x-opt-offset",
        b"x-opt-deadletter-source",
        b"x-opt-lock-token",
    }
)
_SEQUENCE, _TOPIC_SEQUENCE, _ENQUEUED = (
    b"x-opt-sequence-number",
    b"x-opt-enqueue-sequence-number",
    b"x-opt-enqueued-time",
)
_LOCK_TOKEN = b"x-opt-lock-token"
_NAMES = ("repl-origin", "repl-sequence", "repl-offset", "repl-enqueued-time")
_NAME_BYTES = frozenset(name.encode() for name in _NAMES)
_MAP32 = struct.Struct(">4sII").pack
_U32 = struct.Struct(">I")
_RULE_NAME = b"\xa1\x08RuleName"
_SIZE_COUNT = struct.Struct(">II").unpack_from
_I64 = struct.Struct(">q").unpack_from
_CACHE_LIMIT = 4096


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


class Splicer:
    """Makes copies.

    Args:
        origin: alias of the source namespace and entity, e.g. `ewr/flights`; empty: add no provenance.
        target: alias of the target namespace; empty: do not look for loops.
        hop_budget: how many copies of copies a message may become.

    Attributes:
        looped: messages held back because they would return.
    """

    def __init__(self, origin: str, target: str = "", hop_budget: int = DEFAULT_HOP_BUDGET) -> None:
        self.origin = origin
        self.target = target
        self.hop_budget = hop_budget
        self.looped = 0
        self._origin_pair = _text("repl-origin") + _text(origin) + _text("repl-sequence")
        self._offset_key = _text("repl-offset")
        self._time_key = _text("repl-enqueued-time")
        self._headers: dict[bytes, tuple[bytes, int]] = {}
        self._times: dict[int, bytes] = {}
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
        origin_pair, offset_key, times = self._origin_pair, self._offset_key, self._times
        quick = bool(self.origin)
        start = offsets[0]
        front = self._front
        for index in range(1, len(offsets)):
            end = offsets[index]
            # The rule: the front is like the last message's, a MessageId stands, application properties are small and
            # name neither a rule nor a hop. Everything else takes the general way.
            if quick and front is not None and end - start > front.size + 8:
                fields = front.unpack(data, start)
                if fields[0::2] == front.constants:
                    p = start + front.size
                    q = p + 5 + data[p + 4]
                    if data[p : p + 4] == b"\0Ss\xc0" and data[p + 6] != 0x40 and data[p + 5] and q + 6 < end:
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
                        if count >= 0 and e <= end:
                            sequence = fields[front.identity]
                            number = b"%d" % sequence
                            number = b"\xa1%c%b" % (len(number), number)
                            enqueued = fields[front.enqueued]
                            moment = times.get(enqueued)
                            if moment is None:
                                moment = self._learn_time(enqueued)
                            extra = b"%b%b%b%b%b" % (origin_pair, number, offset_key, number, moment)
                            add(
                                b"".join(
                                    (
                                        front.out if not front.ttl_ms else self._with_ttl(front, enqueued, now_ms),
                                        data[p:q],
                                        _MAP32(b"\0St\xd1", len(kept) + len(extra) + 4, count + 8),
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
        sections = section.locate(b, start, end)
        for key, value, after in section.map_items(b, sections.message_annotations):
            name = b[key + 2 : value]
            if name not in BROKER_ANNOTATIONS:
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
                if name not in BROKER_ANNOTATIONS:
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
        start = p
        named = False
        if p < end and b[p + 2] == 0x73:
            p = value_end(b, p + 3)
            named = section.message_id_at(b, (start, p)) > 0
        # Without a place of its own there is nothing to make a MessageId of that no other message has.
        nameless = self.origin and identity and not named
        properties = self._with_message_id(b, start, p, identity) if nameless else b[start:p]
        kept, count = b"", 0
        hops: dict[str, str] = {}
        e = p
        if p < end and b[p + 2] == 0x74:
            e = value_end(b, p + 3)
            items = section.map_items(b, (p, e))
            if items:
                kept, count, hops = _sift(b, items[0][0], e)
        verdict = self._loop(hops) if hops else None
        if verdict is not None:
            return verdict
        provenance = self._joined(hops, identity, enqueued) if self.origin or hops else b""
        count += 2 * len(_NAMES) if provenance else 0
        own = _MAP32(b"\0St\xd1", len(kept) + len(provenance) + 4, count) + kept + provenance if count else b""
        return b"".join((head, delivery, annotations, properties, own, b[e:end]))

    def _loop(self, hops: dict[str, str]) -> tuple[str, str, str] | None:
        """What becomes of a message that has come this way; None: it may go on."""
        visited = [origin.partition("/")[0] for origin in hops.get("repl-origin", "").split(";")]
        if self.target and self.target in visited:
            self.looped += 1
            return "complete", "Visited", f"the message has been in '{self.target}'"
        if len(visited) >= self.hop_budget:
            return "dead-letter", HOPS_USED_UP, f"{len(visited)} hops: {hops.get('repl-origin')}"
        return None

    def _joined(self, hops: dict[str, str], identity: int, enqueued: int) -> bytes:
        if not self.origin:
            return b"".join(_text(name) + _text(hops.get(name, "")) for name in _NAMES)
        own = (self.origin, str(identity), str(identity), _iso(enqueued))
        return b"".join(
            _text(name) + _text(f"{hops[name]};{value}" if name in hops else value)
            for name, value in zip(_NAMES, own, strict=True)
        )

    def _with_message_id(self, b: bytes, start: int, end: int, identity: int) -> bytes:
        """The properties section with a MessageId made of origin and sequence number, so that a replay is recognised."""
        fields = section.decode_properties(b, (start, end)) if end > start else {}
        fields["message_id"] = f"{self.origin}/{identity}"
        return section.encode_properties(fields)

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

    def _learn_time(self, enqueued: int) -> bytes:
        made = self._time_key + _text(_iso(enqueued))
        if len(self._times) >= _CACHE_LIMIT:
            self._times.clear()
        self._times[enqueued] = made
        return made


def _text(value: str) -> bytes:
    raw = value.encode()
    return b"\xa1" + bytes((len(raw),)) + raw if len(raw) < 256 else b"\xb1" + _U32.pack(len(raw)) + raw


def _iso(ms: int) -> str:
    try:
        return _second(ms // 1000) + f"{ms % 1000:03d}Z"
    except (ValueError, OverflowError, OSError):
        return str(ms)


@lru_cache(16)
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.")


def _integer(b: bytes, at: int) -> int:
    code = b[at]
    if code in (0x81, 0x83, 0x80):
        number: int = _I64(b, at + 1)[0]
        return number
    found, _ = codec.decode(b, at)
    return found if isinstance(found, int) else 0


def _delivery_annotations(b: bytes, start: int, end: int) -> bytes:
    """The sender's delivery annotations; the broker's lock token is not among them."""
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


def _sift(b: bytes, start: int, end: int) -> tuple[bytes, int, dict[str, str]]:
    """The pairs of an application-properties map without `RuleName` and provenance, their count, and the provenance."""
    kept: list[bytes] = []
    hops: dict[str, str] = {}
    count = 0
    at = run = start
    while at < end:
        value = at + 2 + b[at + 1] if b[at] == 0xA1 else value_end(b, at)
        width = WIDTH[b[value]]
        after = value + width if 0 < width < 254 else value_end(b, value)
        name = b[at + 2 : value] if b[at] == 0xA1 else b""
        if name == b"RuleName" or name in _NAME_BYTES:
            kept.append(b[run:at])
            run = after
            if name != b"RuleName":
                found, _ = codec.decode(b, value)
                hops[name.decode()] = str(found)
        else:
            count += 2
        at = after
    kept.append(b[run:end])
    return b"".join(kept), count, hops
