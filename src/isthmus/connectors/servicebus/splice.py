"""A message as it goes on to its target, made from its encoded bytes without decoding it.

What it is: `Splicer` cuts the source broker's own annotations and `RuleName` out, puts the replication properties in,
recomputes what is left of TimeToLive, and leaves body, footer and every property of the sender as they are, to the
byte. It also tells which messages must not go: those that would return to a namespace that they have visited, and those
that have used up their hops. What it is not: a transform of contents; it reads no body.
Spec: AMQP 1.0 part 3; SERVICE-BUS.md W8; FEDERATION.md, row "all" of the patterns.

Provenance, application properties, strings, one value per hop joined by ";":
    repl-origin         alias/entity that the message was copied from
    repl-sequence       its sequence number there (of the topic, for a subscription)
    repl-offset         the same: Service Bus has no other offset
    repl-enqueued-time  when it was enqueued there, ISO 8601, UTC, milliseconds

Invariants:
    I1. The sections that the sender wrote come out byte for byte; of the application properties only `RuleName` and the
        `repl-` names change.
    I2. The first value of each `repl-` property is the message's identity and never changes on its way.
    I3. A message never goes to a namespace that is among its origins.
    I4. A message with a TimeToLive goes on with what is left of it, at least 1 ms, so that the target expires it openly.
"""

from __future__ import annotations

import struct
from datetime import UTC, datetime
from typing import NamedTuple

from isthmus.amqp import codec, section
from isthmus.amqp.codec import WIDTH, value_end

__all__ = ["BROKER_ANNOTATIONS", "DEFAULT_HOP_BUDGET", "HOPS_USED_UP", "Refused", "Splicer"]

DEFAULT_HOP_BUDGET = 8
HOPS_USED_UP = "HopBudgetUsedUp"

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
_MAP32 = struct.Struct(">4sII").pack
_U32 = struct.Struct(">I")
_I64 = struct.Struct(">q").unpack_from
_CACHE_LIMIT = 4096


class Refused(NamedTuple):
    """A message that is not sent on: `disposition` is what becomes of it at its source."""

    row: int
    disposition: str
    reason: str
    description: str


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

    def copy_all(self, data: bytes, offsets: list[int], now_ms: int) -> tuple[list[bytes], list[Refused]]:
        """The copies of `data[offsets[i]:offsets[i + 1]]`, in order, and those that must not go.

        Args:
            data: encoded messages, one behind the other.
            offsets: where each starts, and where the last ends.
            now_ms: wall time, for what is left of TimeToLive.

        Raises:
            CodecError: a message is malformed.
        """
        copies: list[bytes] = []
        refused: list[Refused] = []
        one = self._copy
        add = copies.append
        start = offsets[0]
        for index in range(1, len(offsets)):
            end = offsets[index]
            made = one(data, start, end, now_ms)
            if type(made) is bytes:
                add(made)
            else:
                assert isinstance(made, tuple)
                refused.append(Refused(index - 1, *made))
            start = end
        return copies, refused

    def copy(self, message: bytes, now_ms: int) -> bytes | Refused:
        """The copy of one message, or why there is none."""
        copies, refused = self.copy_all(message, [0, len(message)], now_ms)
        return copies[0] if copies else refused[0]

    def _copy(self, b: bytes, p: int, end: int, now_ms: int) -> bytes | tuple[str, str, str]:
        head = annotations = b""
        sequence = enqueued = ttl_ms = 0
        topic_sequence = 0
        if b[p + 2] == 0x70:
            code = b[p + 3]
            e = p + 8 + _U32.unpack_from(b, p + 4)[0] if code == 0xD0 else value_end(b, p + 3)
            raw = b[p:e]
            known = self._headers.get(raw)
            if known is None:
                known = self._learn_header(raw)
            head, ttl_ms = known
            p = e
        kept_delivery = b""
        if p < end and b[p + 2] == 0x71:
            e = value_end(b, p + 3)
            kept_delivery = _delivery_annotations(b, p, e)
            p = e
        if p < end and b[p + 2] == 0x72:
            if b[p + 3] == 0xD1:
                e = p + 8 + _U32.unpack_from(b, p + 4)[0]
                q = p + 12
            else:
                e = value_end(b, p + 3)
                q = p + 6
            kept = b""
            count = 0
            run = q
            while q < e:
                value = q + 2 + b[q + 1]
                width = WIDTH[b[value]]
                after = value + width if 0 < width < 254 else value_end(b, value)
                name = b[q + 2 : value]
                if name in BROKER_ANNOTATIONS:
                    if run < q:
                        kept += b[run:q]
                    run = after
                    if name == _SEQUENCE:
                        sequence = _integer(b, value)
                    elif name == _ENQUEUED:
                        enqueued = _integer(b, value)
                    elif name == _TOPIC_SEQUENCE:
                        topic_sequence = _integer(b, value)
                else:
                    count += 2
                q = after
            if run < e and count:
                kept += b[run:e]
            if count:
                annotations = _MAP32(b"\0Sr\xd1", len(kept) + 4, count) + kept
            p = e
        identity = topic_sequence or sequence
        if ttl_ms:
            left = max(1, ttl_ms - max(0, now_ms - enqueued)) if enqueued else ttl_ms
            head = head[:-4] + _U32.pack(left)
        start = p
        named = False
        if p < end and b[p + 2] == 0x73:
            code = b[p + 3]
            if code == 0xC0:
                e = p + 5 + b[p + 4]
                named = b[p + 5] > 0 and b[p + 6] != 0x40
            elif code == 0xD0:
                e = p + 8 + _U32.unpack_from(b, p + 4)[0]
                named = b[p + 12] != 0x40
            else:
                e = value_end(b, p + 3)
            p = e
        properties = b[start:p] if named or not self.origin else self._with_message_id(b, start, p, identity)
        extra, pairs = b"", 0
        q = e = p
        kept = b""
        count = 0
        if p < end and b[p + 2] == 0x74:
            if b[p + 3] == 0xC1:
                e = p + 5 + b[p + 4]
                q = p + 6
                count = b[p + 5]
            elif b[p + 3] == 0xD1:
                e = p + 8 + _U32.unpack_from(b, p + 4)[0]
                q = p + 12
                count = _U32.unpack_from(b, p + 8)[0]
            else:
                e = value_end(b, p + 3)
                q = e
            if b.find(b"RuleName", q, e) >= 0 or b.find(b"repl-", q, e) >= 0:
                kept, count, hops = _sift(b, q, e)
                if hops:
                    verdict = self._loop(hops)
                    if verdict is not None:
                        return verdict
                    return self._assemble(
                        head,
                        kept_delivery,
                        annotations,
                        properties,
                        kept,
                        count,
                        self._joined(hops, identity, enqueued),
                        b,
                        e,
                        end,
                    )
            else:
                kept = b[q:e]
        if self.origin:
            number = b"%d" % identity
            number = b"\xa1" + bytes((len(number),)) + number
            moment = self._times.get(enqueued)
            if moment is None:
                moment = self._learn_time(enqueued)
            extra = self._origin_pair + number + self._offset_key + number + moment
            pairs = 8
        if not count + pairs:
            return b"".join((head, kept_delivery, annotations, properties, b[e:end]))
        return b"".join(
            (
                head,
                kept_delivery,
                annotations,
                properties,
                _MAP32(b"\0St\xd1", len(kept) + len(extra) + 4, count + pairs),
                kept,
                extra,
                b[e:end],
            )
        )

    def _assemble(
        self, head: bytes, delivery: bytes, annotations: bytes, properties: bytes, kept: bytes, count: int, hops: bytes,
        b: bytes, body: int, end: int,
    ) -> bytes:  # fmt: skip
        count += 2 * len(_NAMES)
        section_head = _MAP32(b"\0St\xd1", len(kept) + len(hops) + 4, count)
        return b"".join((head, delivery, annotations, properties, section_head, kept, hops, b[body:end]))

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
        return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{ms % 1000:03d}Z"
    except (ValueError, OverflowError, OSError):
        return str(ms)


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
        if name == b"RuleName" or (name[:5] == b"repl-" and name.decode() in _NAMES):
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
