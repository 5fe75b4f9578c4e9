"""The copy of a message for its target, made from the encoded bytes without decoding them.

What it is: `MessageRewriter` removes the source broker's own annotations and `RuleName`, adds provenance and the task's mark,
recomputes the remaining TimeToLive, applies the route's copy policy, and keeps body, footer and every property of the
sender byte for byte. It also reports the messages that must not be forwarded: copies that would return to an entity that they have
been in, copies that this task has made already, those that have used up their hops, and expired ones. This
module contains the fast path, for messages that begin like the previous one, and within it the fastest, for those with the
same layout up to the body (`layout`); `message_copy` is the general path. What it is not: a transform of contents; it reads a body
only for its digest.
Specification: OASIS AMQP 1.0 part 3; docs/explanation/guarantees.md.

Invariants:
    I1. The sender's sections are kept byte for byte; of the application properties only `RuleName`, the mark,
        the properties of provenance and those that the policy names change.
    I2. The first value of each hop property is the message's identity and never changes.
    I3. A copy is never sent to an entity that is among its hops.
    I4. A message with a TimeToLive is forwarded with the rest of it by its broker's clock, at least 1 ms, so that the target
        expires it visibly.
    I5. A message is stopped only as the copy that its provenance proves it to be (`isthmus.message.provenance`, I1): with
        another MessageId or body it is new, and its provenance begins here.
    I6. Every copy has the task's mark, whether or not the rule of its source has set one.
    I7. All paths make the same copy. Where a fast one cannot, the general one decides the outcome of the message.
    I8. Where an application's entity is emptied, copies of messages that rules with actions made of one message have keys of their own.
"""

from __future__ import annotations

import struct
from collections import deque
from contextlib import suppress
from hashlib import sha1
from typing import Any, NamedTuple

from isthmus.connectors.servicebus.message.front import MAP32, Front, FrontReader
from isthmus.connectors.servicebus.message.layout import BODY_BYTES, MESSAGE_ID, PAIRS, PROPERTIES, Layouts
from isthmus.connectors.servicebus.message.message_copy import (
    COPIED,
    HOPS_USED_UP,
    NUMBER_ONE,
    TAIL_COUNT,
    VISITED,
    Identity,
    Mark,
    MessageCopy,
    Verdict,
)
from isthmus.connectors.servicebus.message.rule_name import RULE_NAME, without_rule_name
from isthmus.connectors.servicebus.message.sequence import UNREADABLE
from isthmus.connectors.servicebus.message.unnamed import is_unnamed, named
from isthmus.message import Tail, duplicate_key, made_message_id
from isthmus.message.copy_policy import CopyPolicy
from isthmus.message.provenance import HOP_BUDGET, OFFSET_DIGITS, encoded

__all__ = ["COPIED", "HOPS_USED_UP", "MALFORMED", "VISITED", "Mark", "MessageRewriter", "Refused"]

MALFORMED = "Malformed"


_SIZE_COUNT = struct.Struct(">II").unpack_from
_U32_AT = struct.Struct(">I").unpack_from
_NO_HASH = sha1(usedforsecurity=False)
# How many fronts are kept: PartitionKeys of different lengths need different ones.
FRONTS = 16
# The number 1 in the encoding of brokers.
_ONES = (NUMBER_ONE, b"\x54\x01", b"\x71\0\0\0\1", b"\x81\0\0\0\0\0\0\0\1")


class Refused(NamedTuple):
    """A message that is not sent; `disposition` is its outcome at its source."""

    row: int
    disposition: str
    reason: str
    description: str


class MessageRewriter:
    """Makes copies.

    Args:
        origin: alias of the source namespace and entity, e.g. `ewr/flights`; empty: add no provenance.
        target: alias of the target namespace; empty: do not check for loops.
        hop_budget: how many copies of copies a message may become.
        origin_namespace: identity of the source namespace; empty: its alias.
        target_namespace: identity of the target namespace; empty: its alias.
        entity: the target's queue or topic; empty: as the source's.
        mark: the mark of every copy; None: no mark.
        makes_message_ids: whether a copy's MessageId is made of its duplicate key, for a target that keeps no keys.
        trusts: whether provenance is valid even if its digest does not match, because steps of the route change contents.
        policy: further differences of a copy.
    """

    def __init__(
        self,
        origin: str,
        target: str = "",
        hop_budget: int = HOP_BUDGET,
        *,
        origin_namespace: str = "",
        target_namespace: str = "",
        entity: str = "",
        mark: Mark | None = None,
        makes_message_ids: bool = False,
        trusts: bool = False,
        policy: CopyPolicy | None = None,
    ) -> None:
        alias, _, source_entity = origin.partition("/")
        self.origin = origin
        self.mark = mark
        self._trusts = trusts
        self._tail = Tail(origin, origin_namespace or alias)
        self._mark_key = encoded(mark.name) if mark is not None else b""
        policy = policy or CopyPolicy()
        self._fronts = FrontReader(policy)
        identity = Identity(
            origin=origin,
            target=target,
            target_namespace=target_namespace or target,
            entity=entity or source_entity,
            hop_budget=hop_budget,
            mark=mark,
            makes_message_ids=makes_message_ids,
            trusts=trusts,
        )
        self._general = MessageCopy(identity, policy, self._tail, self._fronts)
        # Of the policy the fast path implements the limit of TimeToLive. It handles no message with provenance or without MessageId.
        is_simple = policy == CopyPolicy(
            ttl_ceiling_ms=policy.ttl_ceiling_ms,
            dead_letters_returning=policy.dead_letters_returning,
            makes_message_ids=policy.makes_message_ids,
        )
        self._has_rule_keys = policy.dead_letters_returning  # I8, on the general path
        self._is_quick = bool(origin) and not makes_message_ids and is_simple
        self._front: Front | None = None
        self._others: deque[Front] = deque(maxlen=FRONTS)  # learned earlier, and not matching the last message
        self._own = self._own_of(1)
        self._layouts = Layouts()

    @property
    def looped(self) -> int:
        """Messages stopped because they would return."""
        return self._general.looped

    def copy_all(self, data: bytes, offsets: list[int], now_ms: int) -> tuple[list[bytes], list[Refused]]:
        """The copies of `data[offsets[i]:offsets[i + 1]]`, in order, and the messages that must not be forwarded.

        Args:
            data: encoded messages, one after the other.
            offsets: the start of each, and the end of the last.
            now_ms: wall time of the source broker, for the remaining TimeToLive.
        """
        copies: list[bytes] = []
        refused: list[Refused] = []
        add = copies.append
        find, join, fresh_hash, view = data.find, b"".join, _NO_HASH.copy, memoryview(data)
        tail, mark_key = self._tail, self._mark_key
        digest_key, time_of = tail.digest, tail.time
        marks_number = self.mark is not None and self.mark.is_number
        quick, by_rule = self._is_quick, self._has_rule_keys
        digits, first, offset_key, dash, tail_size = self._own
        proven = OFFSET_DIGITS if dash else 0
        enqueued, time = 0, time_of(0)
        start, front = offsets[0], self._front
        layout = None
        unpack: Any = None  # this and the following: of the layout
        constants: Any = ()
        head_size = section = identity = enqueued_at = count = 0
        pairs_seen = kept = own = lead = begin = b""
        for index in range(1, len(offsets)):
            end = offsets[index]
            try:
                # The conditions of each path below hold here too: the previous message took it, with these constants.
                if layout is not None:
                    body_at = start + head_size
                    if body_at <= end:
                        fields = unpack(data, start)
                        is_like = body_at + fields[BODY_BYTES] == end and fields[0::2] == constants
                        if is_like and fields[PAIRS] != pairs_seen:
                            others = fields[PAIRS]
                            # The checks of the path below, for pairs of the same size.
                            is_like = (
                                kept == pairs_seen
                                and b"repl-" not in others
                                and RULE_NAME not in others
                                and (not mark_key or (bool(own) and mark_key not in others))
                            )
                            pairs_seen, kept, lead = others, others, b""
                        if is_like:
                            number = b"%d" % fields[identity]
                            if enqueued != fields[enqueued_at] or len(number) != digits or not lead:
                                if len(number) != digits:
                                    digits, first, offset_key, dash, tail_size = self._own = self._own_of(len(number))
                                enqueued = fields[enqueued_at]
                                time = time_of(enqueued)
                                size = len(kept) + len(own) + tail_size + len(time) + 4
                                lead = join((MAP32(b"\0St\xd1", size, count + TAIL_COUNT), kept, own, first))
                            # In the form of `isthmus.message.digest`, without copying the body.
                            message_id = fields[MESSAGE_ID]
                            hashed = fresh_hash()
                            hashed.update(message_id + b"\0")
                            hashed.update(view[body_at:end])
                            proof = hashed.hexdigest()[:16].encode()
                            add(
                                join(
                                    (
                                        begin or layout.front.begin(fields, now_ms) + layout.properties,
                                        message_id,
                                        fields[PROPERTIES],
                                        lead,
                                        number,
                                        offset_key,
                                        number,
                                        dash,
                                        proof[:proven],
                                        time,
                                        digest_key,
                                        proof,
                                        data[start + section : end],
                                    )
                                )
                            )
                            start = end
                            continue
                    layout = None
                # The common case: the front matches an earlier one, the MessageId is a short string, or there is none and the properties are
                # those of a Kafka record, application properties are small and contain neither a hop nor, unless it is a number, the
                # mark, and the body is one data section. All other messages take the general path.
                if quick and front is not None and end - start > front.size + 8:
                    fields = front.unpack(data, start)
                    if fields[0::2] != front.constants:
                        front, fields = self._other_front(data, start, end)
                    if front is not None:
                        p = start + front.size
                        q = p + 5 + data[p + 4]
                        if (
                            data[p : p + 4] == b"\0Ss\xc0"
                            and q + 6 < end
                            and data[p + 5]
                            and (data[p + 6] == 0xA1 or (fields[front.identity] and is_unnamed(data, p, q)))
                        ):
                            is_named = data[p + 6] == 0xA1
                            properties = data[p:q]
                            message_id = data[p + 8 : p + 8 + data[p + 7]] if is_named else b""
                            kept = own = b""
                            count = 0
                            e = pairs = q
                            if data[q : q + 3] == b"\0St":
                                if data[q + 3] == 0xC1:
                                    e, pairs, count = q + 5 + data[q + 4], q + 6, data[q + 5]
                                elif data[q + 3] == 0xD1:
                                    size, count = _SIZE_COUNT(data, q + 4)
                                    e, pairs = q + 8 + size, q + 12
                                kept = data[pairs:e]
                                if pairs > e or find(b"repl-", pairs, e) >= 0:
                                    count = -1
                                elif find(RULE_NAME, pairs, e) >= 0:
                                    kept, count = (kept, -1) if by_rule else without_rule_name(data, pairs, e, count)
                            if mark_key and count >= 0:
                                own_at = find(mark_key, pairs, e)
                                if own_at < 0:
                                    own = mark_key
                                    count += 2
                                elif not marks_number or not data.startswith(_ONES, own_at + len(mark_key)):
                                    count = -1  # it is another value, or not a name
                            kind = data[e : e + 4]
                            if kind == b"\0Su\xb0":
                                at = e + 8
                                size = _U32_AT(data, e + 4)[0]
                            elif kind == b"\0Su\xa0":
                                at = e + 5
                                size = data[e + 4]
                            else:
                                at, size = e, -1
                            if count >= 0 and at + size == end:
                                number = b"%d" % fields[front.identity]
                                if len(number) != digits:
                                    digits, first, offset_key, dash, tail_size = self._own = self._own_of(len(number))
                                if enqueued != fields[front.enqueued]:
                                    time = time_of(fields[front.enqueued])
                                    enqueued = fields[front.enqueued]
                                body = data[at:end]
                                # In the form of `isthmus.message.digest`.
                                hashed = fresh_hash()
                                hashed.update(b"%b\0%b" % (message_id, body))
                                proof = origin_proof = hashed.digest()[:8].hex().encode()
                                if not is_named:
                                    key = join(
                                        (first, number, offset_key, number, dash, proof[:proven], time, digest_key)
                                    )
                                    message_id = made_message_id(duplicate_key(key, 0, len(key))).encode()
                                    properties = named(properties, message_id)
                                    hashed = fresh_hash()
                                    hashed.update(b"%b\0%b" % (message_id, body))
                                    proof = hashed.digest()[:8].hex().encode()
                                # A mark that is the MessageId differs in each copy.
                                if is_named and (not own or marks_number):
                                    layout = self._layouts.of(front, data, p, q, pairs, e)
                                    pairs_seen, lead = data[pairs:e], b""
                                    if layout is not None:
                                        unpack, constants = layout.unpack, layout.constants
                                        head_size, section = layout.size, layout.body
                                        identity, enqueued_at = front.identity, front.enqueued
                                        begin = front.out + layout.properties if front.is_constant else b""
                                if own:
                                    own += NUMBER_ONE if marks_number else b"\xa1%c%b" % (len(message_id), message_id)
                                size = len(kept) + len(own) + tail_size + len(time) + 4
                                add(
                                    join(
                                        (
                                            front.out if front.is_constant else front.begin(fields, now_ms),
                                            properties,
                                            MAP32(b"\0St\xd1", size, count + TAIL_COUNT),
                                            kept,
                                            own,
                                            first,
                                            number,
                                            offset_key,
                                            number,
                                            dash,
                                            origin_proof[:proven],
                                            time,
                                            digest_key,
                                            proof,
                                            data[e:at],
                                            body,
                                        )
                                    )
                                )
                                start = end
                                continue
            except Exception:  # noqa: BLE001 - a size within it is wrong; the general path decides its outcome
                layout = None
            made: bytes | Verdict
            try:
                made = self._general.make(data, start, end, now_ms)
            except UNREADABLE as error:
                made = "dead-letter", MALFORMED, str(error)
            except Exception as error:  # noqa: BLE001 - an invalid message must not stop its route permanently
                made = "dead-letter", MALFORMED, f"it cannot be copied: {type(error).__name__}: {error}"
            if quick:
                front = self._learned(data, start, end, front)
            if isinstance(made, bytes):
                add(made)
            else:
                refused.append(Refused(index - 1, *made))
            start = end
        return copies, refused

    def _other_front(self, data: bytes, start: int, end: int) -> tuple[Front | None, tuple[Any, ...]]:
        """An earlier front that matches a message, and the message split by it."""
        for front in self._others:
            if end - start > front.size + 8:
                fields = front.unpack(data, start)
                if fields[0::2] == front.constants:
                    return front, fields
        return None, ()

    def _learned(self, data: bytes, start: int, end: int, front: Front | None) -> Front | None:
        """The front of a message that took the general path; `front` where that matches."""
        if front is None:
            front, _ = self._other_front(data, start, end)
        if front is None:
            with suppress(Exception):  # the general path has reported the fault
                front = self._fronts.learn(data, start, end)
            if front is not None:
                self._others.appendleft(front)
        self._front = front
        return front

    def _own_of(self, digits: int) -> tuple[int, bytes, bytes, bytes, int]:
        """The beginning of a copy's own properties, for a sequence number with so many digits.

        Returns:
            The digits; the bytes before the number, between number and offset, and between number and digest in the
            offset, empty where the offset has no digest; the size of everything but the time.
        """
        tail = self._tail
        dash = b"" if self._trusts else b"-"
        width = digits + OFFSET_DIGITS + 1 if dash else digits
        first, offset_key = b"%b\xa1%c" % (tail.first, digits), b"%b\xa1%c" % (tail.offset, width)
        return digits, first, offset_key, dash, len(first) + digits + len(offset_key) + width + len(tail.digest) + 16

    def copy(self, message: bytes, now_ms: int) -> bytes | Refused:
        """The copy of one message, or why there is none."""
        copies, refused = self.copy_all(message, [0, len(message)], now_ms)
        return copies[0] if copies else refused[0]
