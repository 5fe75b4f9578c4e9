"""Locks of one queue: which delivered messages are locked by which token, and until when.

What it is: one object per call of ``acquire``, not one per message; a lock token is the object's eight random bytes and
the message's sequence number. Settling a run in the order of delivery costs slices, not steps. Expired locks are found
by a heap over these objects. What it is not: durable; a restart ends all locks.
Spec: docs/explanation/protocol.md, Settlement.

Invariants:
    I1. A token settles at most once: its flag is cleared by the first settlement or expiry.
    I2. Expiry checks only lock objects that are due, however many are held.
"""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from isthmus.entities.queue.run import runs_of
from isthmus.entities.storage.blob import Payload

__all__ = ["Acquired", "Lock", "LockTable", "Span"]


class Acquired:
    """The messages taken by one call of ``acquire``.

    Attributes:
        tags: lock tokens of 16 bytes, in the order of the messages; also the delivery tags.
        payloads: encoded messages, ready for the wire.
        sequences: their sequence numbers, ascending.
        locked_until_ms: wall time, as clients are shown it; 0 where the messages were deleted instead of locked.
    """

    __slots__ = ("locked_until_ms", "payloads", "sequences", "tags")

    def __init__(
        self, tags: list[bytes], payloads: list[Payload], sequences: Sequence[int], locked_until_ms: int
    ) -> None:
        self.tags = tags
        self.payloads = payloads
        self.sequences = sequences
        self.locked_until_ms = locked_until_ms


class Lock:
    """The messages of one acquisition.

    Attributes:
        random: first half of every token.
        tags: the tokens.
        sequences: ascending.
        sizes: bytes of each message as stored.
        live: per message 1 while locked, 0 once settled or expired.
        remaining: how many are live.
        expires_at_ms: of those not in `renewed`; monotonic time, as all times here but those that clients are shown.
        renewed: index → later expiry, for messages renewed alone.
        deferred: whether the messages are deferred ones.
    """

    __slots__ = ("deferred", "expires_at_ms", "live", "random", "remaining", "renewed", "sequences", "sizes", "tags")

    def __init__(
        self, random: bytes, tags: list[bytes], sequences: Sequence[int], sizes: array[int], expires_at_ms: int
    ) -> None:
        self.random = random
        self.tags = tags
        self.sequences = sequences
        self.sizes = sizes
        self.live = bytearray(b"\x01") * len(tags)
        self.remaining = len(tags)
        self.expires_at_ms = expires_at_ms
        self.renewed: dict[int, int] | None = None
        self.deferred = False

    def index_of(self, token: bytes) -> int:
        """The index of a token in `tags`; -1 if it is not live here."""
        sequences = self.sequences
        if not sequences:
            return -1
        sequence = int.from_bytes(token[8:], "big")
        at = sequence - sequences[0] if isinstance(sequences, range) else bisect_left(sequences, sequence)
        if 0 <= at < len(sequences) and self.live[at] and self.tags[at] == token:
            return at
        return -1


class Span(NamedTuple):
    """Messages just unlocked, neighbours in one lock.

    Attributes:
        sequences: ascending.
        size_bytes: their size as stored.
        sizes: of each.
        deferred: whether they are deferred messages.
    """

    sequences: Sequence[int]
    size_bytes: int
    sizes: array[int]
    deferred: bool


class LockTable:
    """All live locks of one queue."""

    __slots__ = ("_by_random", "_count", "_heap", "locked")

    def __init__(self) -> None:
        self._by_random: dict[bytes, Lock] = {}
        self._heap: list[tuple[int, int, Lock]] = []
        self._count = 0
        self.locked = 0

    def add(self, lock: Lock) -> None:
        """Hold a new lock."""
        self._by_random[lock.random] = lock
        self.locked += lock.remaining
        self._push(lock, lock.expires_at_ms)

    def _push(self, lock: Lock, at_ms: int) -> None:
        if len(self._heap) > 2 * len(self._by_random) + 64:
            self._heap = [entry for entry in self._heap if entry[2].remaining]
            heapq.heapify(self._heap)
        self._count += 1  # ties in the heap are broken by it: locks do not compare
        heapq.heappush(self._heap, (at_ms, self._count, lock))

    def take(self, tokens: Sequence[bytes]) -> tuple[list[bool], list[Span]]:
        """Unlock messages: returns per token whether it was live, and the messages as spans in the order of the tokens."""
        by_random = self._by_random
        spans: list[Span] = []
        total = len(tokens)
        flags: list[bool] | None = None
        at = 0
        while at < total:
            token = tokens[at]
            lock = by_random.get(token[:8])
            start = -1 if lock is None else lock.index_of(token)
            if lock is None or start < 0:
                if flags is None:
                    flags = [True] * total
                flags[at] = False
                at += 1
                continue
            tags, live = lock.tags, lock.live
            count = min(total - at, len(tags) - start)
            stop = start + count
            if count > 1 and (tags[start:stop] != tokens[at : at + count] or live.count(1, start, stop) != count):
                stop = start + 1
                limit = start + count
                while stop < limit and live[stop] and tags[stop] == tokens[at + stop - start]:
                    stop += 1
                count = stop - start
            spans.append(self._unlock(lock, start, stop))
            at += count
        return flags or [True] * total, spans

    def take_all(self) -> list[Span]:
        """Unlock everything: returns the messages as spans, lock by lock."""
        spans = []
        for lock in list(self._by_random.values()):
            for first, last in runs_of([index for index, live in enumerate(lock.live) if live]):
                spans.append(self._unlock(lock, first, last + 1))
        return spans

    def holds(self, tokens: Sequence[bytes]) -> list[bool]:
        """Per token whether it is live; changes nothing."""
        found = [self._by_random.get(token[:8]) for token in tokens]
        return [lock is not None and lock.index_of(token) >= 0 for lock, token in zip(found, tokens, strict=True)]

    def renew(self, tokens: Sequence[bytes], until_ms: int) -> list[bool]:
        """Postpone the expiry of live tokens; returns per token whether it was live."""
        flags = []
        touched: dict[bytes, set[int]] = {}
        for token in tokens:
            lock = self._by_random.get(token[:8])
            index = -1 if lock is None else lock.index_of(token)
            flags.append(index >= 0)
            if index >= 0:
                touched.setdefault(token[:8], set()).add(index)
        for random, indices in touched.items():
            lock = self._by_random[random]
            if until_ms < lock.expires_at_ms:  # the entity's LockDuration was shortened meanwhile
                self._push(lock, until_ms)
            if len(indices) == lock.remaining:
                lock.expires_at_ms = until_ms
                lock.renewed = None
            else:
                if lock.renewed is None:
                    lock.renewed = {}
                lock.renewed.update(dict.fromkeys(indices, until_ms))
        return flags

    def expire(self, now_ms: int, limit: int) -> list[Span]:
        """Unlock expired messages, up to about `limit` messages."""
        spans: list[Span] = []
        heap = self._heap
        found = 0
        while heap and heap[0][0] <= now_ms and found < limit:
            _, _, lock = heapq.heappop(heap)
            if not lock.remaining or self._by_random.get(lock.random) is not lock:
                continue
            renewed = lock.renewed or {}
            if lock.expires_at_ms > now_ms and not renewed:
                self._push(lock, lock.expires_at_ms)
                continue
            expiry = {index: renewed.get(index, lock.expires_at_ms) for index, live in enumerate(lock.live) if live}
            due = [index for index, at_ms in expiry.items() if at_ms <= now_ms]
            for first, last in runs_of(due):
                spans.append(self._unlock(lock, first, last + 1))
                found += last + 1 - first
            if lock.remaining:
                self._push(lock, min(expiry[index] for index, live in enumerate(lock.live) if live))
        return spans

    def _unlock(self, lock: Lock, start: int, stop: int) -> Span:
        count = stop - start
        if count == len(lock.live):
            sequences, sizes = lock.sequences, lock.sizes
        else:
            sequences, sizes = lock.sequences[start:stop], lock.sizes[start:stop]
        lock.live[start:stop] = bytes(count)
        lock.remaining -= count
        self.locked -= count
        if not lock.remaining:
            del self._by_random[lock.random]
            lock.tags, lock.sequences, lock.live = [], (), bytearray()  # its entry in the heap may stay for minutes
        return Span(sequences, sum(sizes), sizes, lock.deferred)

    @property
    def due_ms(self) -> int | None:
        """Monotonic time at which `expire` may find something; None if nothing is locked."""
        heap = self._heap
        while heap and not heap[0][2].remaining:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def clear(self) -> None:
        """End all locks."""
        self._by_random.clear()
        self._heap.clear()
        self.locked = 0
