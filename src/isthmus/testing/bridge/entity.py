"""An entity of the memory system: a queue, or a log with partitions.

What it is: messages in order, locks, delivery counts, dead letters, duplicate detection. A queue locks what it delivers for
`lock_seconds`; a lock ends by settlement, release or time, and a delivery is settled only under its own lock. A log locks nothing:
one reader owns it, and the next reader begins after the committed offset of each partition, up to which every message is
settled. What it is not: a connection (`source`, `target`); it is called under the system's lock.

Invariants:
    I1. A message is at most in one place: waiting, locked, settled, or a dead letter.
    I2. Waiting messages are delivered in the order of positions within their partition; a released message gets its position back.
    I3. A settlement under a lock that has ended changes nothing.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from isthmus.bridge.delivery_event import Disposition
from isthmus.bridge.port import PARTITION_SHIFT
from isthmus.testing.bridge.fault import Faults

__all__ = ["DeadLetter", "Entity", "Stored"]


class DeadLetter(NamedTuple):
    """A message that was set aside."""

    key: str
    position: int
    reason: str
    description: str


@dataclass(slots=True)
class Stored:
    """A message that is not settled.

    Attributes:
        token: of its lock; 0 where it is not locked. A later delivery has a higher one.
        owner: who holds the lock.
        locked_until: system time at which the lock ends.
        deliveries: how often it was delivered.
    """

    position: int
    key: str
    payload: bytes
    token: int = 0
    owner: object = None
    locked_until: float = 0.0
    deliveries: int = 0


@dataclass(slots=True, eq=False)
class Entity:
    """A queue or a log.

    Attributes:
        partitions: of a log; a key's number modulo that chooses one.
        lock_seconds: of a queue.
        max_deliveries: a message that comes back after so many is dead-lettered; 0: never.
        detects_duplicates: whether a message whose key was stored before is taken and not stored.
        message_bytes: the largest message that it takes; 0: any.
        credit: deliveries that it takes without an outcome.
        accepted: keys of stored messages, in order.
        suppressed: keys of duplicates that were not stored.
        delivered: deliveries to receivers.
        renewals: locks that were renewed.
        copied_at_ms: wall times at which copies for it were made.
    """

    name: str
    is_log: bool = False
    partitions: int = 1
    lock_seconds: float = 60.0
    max_deliveries: int = 0
    detects_duplicates: bool = False
    message_bytes: int = 0
    credit: int = 1000
    faults: Faults = field(default_factory=Faults)
    accepted: list[str] = field(default_factory=list)
    suppressed: list[str] = field(default_factory=list)
    settled: list[str] = field(default_factory=list)
    dead_letters: list[DeadLetter] = field(default_factory=list)
    deferred: list[str] = field(default_factory=list)
    delivered: int = 0
    renewals: int = 0
    copied_at_ms: list[int] = field(default_factory=list)
    _waiting: list[list[int]] = field(default_factory=list)
    _items: dict[int, Stored] = field(default_factory=dict)
    _locked: dict[int, Stored] = field(default_factory=dict)
    _acknowledged: dict[int, Stored] = field(default_factory=dict)
    _ends: list[int] = field(default_factory=list)
    _seen: set[str] = field(default_factory=set)
    _token: int = 0
    _next_partition: int = 0
    _reader: object = None

    def __post_init__(self) -> None:
        self._waiting = [[] for _ in range(self.partitions)]
        self._ends = [0] * self.partitions

    # ---- queries of tests

    @property
    def is_empty(self) -> bool:
        """Whether every message is settled, dead-lettered or deferred; of a log, and the offset is committed."""
        return not self._items

    @property
    def left(self) -> list[str]:
        """Keys of messages that are not settled."""
        return [self._items[position].key for position in sorted(self._items)]

    @property
    def locked(self) -> int:
        """Messages that are locked now."""
        return len(self._locked)

    @property
    def end(self) -> int:
        """The highest position given so far in the last partition."""
        return self._ends[-1] | (self.partitions - 1) << PARTITION_SHIFT

    # ---- writing

    def put(self, payload: bytes, key: str) -> None:
        """Stores a message."""
        if key and self.detects_duplicates and key in self._seen:
            self.suppressed.append(key)
            return
        self._seen.add(key)
        self.accepted.append(key)
        number = key.rpartition("/")[2]
        partition = int(number) % self.partitions if number.isdigit() else 0
        self._ends[partition] += 1
        position = partition << PARTITION_SHIFT | self._ends[partition]
        self._items[position] = Stored(position, key, payload)
        heapq.heappush(self._waiting[partition], position)

    # ---- reading

    def opened(self, owner: object) -> None:
        """A receiver connects; a log's reader before it is replaced."""
        if not self.is_log or owner is self._reader:
            return
        self._reader = owner
        for stored in [*self._locked.values(), *self._acknowledged.values()]:
            self._unlock(stored)
        self._acknowledged.clear()

    def take(
        self, owner: object, count: int, *, ordered: bool, now: float, below: Sequence[int] | None
    ) -> list[Stored]:
        """Locks up to `count` messages for a receiver.

        Args:
            owner: the receiver.
            count: how many.
            ordered: whether to stop at a message before which another receiver holds one.
            now: system time.
            below: highest position by partition; None: no limit.
        """
        self.expire(now)
        if self.is_log and owner is not self._reader:
            return []
        taken: list[Stored] = []
        idle = 0
        while len(taken) < count and idle < self.partitions:
            partition = self._next_partition
            self._next_partition = (partition + 1) % self.partitions
            waiting = self._waiting[partition]
            limit = None if below is None else below[partition]
            is_over = bool(waiting) and limit is not None and waiting[0] > limit
            if not waiting or is_over or (ordered and self.blocker(owner, partition)):
                idle += 1
                continue
            idle = 0
            stored = self._items[heapq.heappop(waiting)]
            self._token += 1
            stored.token, stored.owner = self._token, owner
            stored.locked_until = float("inf") if self.is_log else now + self.lock_seconds
            stored.deliveries += 1
            self._locked[stored.position] = stored
            self.delivered += 1
            taken.append(stored)
        return taken

    def blocker(self, owner: object, partition: int = 0) -> int:
        """The lowest position that is locked by another receiver before the first waiting one; 0 for none."""
        waiting = self._waiting[partition]
        if not waiting or not self._locked:
            return 0
        held = [
            stored.position
            for stored in self._locked.values()
            if stored.owner is not owner
            and stored.position >> PARTITION_SHIFT == partition
            and stored.position < waiting[0]
        ]
        return min(held, default=0)

    def ends(self) -> list[int]:
        """The last position of each partition."""
        return [partition << PARTITION_SHIFT | end for partition, end in enumerate(self._ends)]

    def has_waiting(self, below: Sequence[int]) -> bool:
        """Whether a message up to these positions waits."""
        return any(waiting and waiting[0] <= limit for waiting, limit in zip(self._waiting, below, strict=True))

    def next_expiry(self) -> float:
        """System time at which the next lock ends; infinite where none does."""
        return min((stored.locked_until for stored in self._locked.values()), default=float("inf"))

    # ---- the end of a lock

    def renew(self, position: int, token: int, now: float) -> bool:
        """Renews a lock; returns whether it was valid."""
        stored = self._locked.get(position)
        if stored is None or stored.token != token or stored.locked_until <= now or self.faults.refuses_renewal:
            return False
        if not self.is_log:
            stored.locked_until = now + self.lock_seconds
            self.renewals += 1
        return True

    def settle(self, position: int, token: int, disposition: Disposition | None, now: float) -> bool:
        """Ends a delivery; returns whether its lock was valid."""
        stored = self._locked.get(position)
        if stored is None or stored.token != token or stored.locked_until <= now:
            return False
        kind = "complete" if disposition is None else disposition.kind
        if kind == "abandon":
            self._unlock(stored)
            return True
        del self._locked[position]
        if kind == "dead-letter":
            assert disposition is not None
            self.dead_letters.append(DeadLetter(stored.key, position, disposition.reason, disposition.description))
        else:
            (self.settled if kind == "complete" else self.deferred).append(stored.key)
        if self.is_log:
            self._acknowledged[position] = stored
            self._commit(position >> PARTITION_SHIFT)
        else:
            del self._items[position]
        return True

    def release(self, position: int, token: int) -> None:
        """Releases a message."""
        stored = self._locked.get(position)
        if stored is not None and stored.token == token:
            self._unlock(stored)

    def release_owner(self, owner: object) -> None:
        """Releases the messages that a receiver has locked."""
        for stored in list(self._locked.values()):
            if stored.owner is owner:
                self._unlock(stored)

    def expire(self, now: float) -> int:
        """Ends the locks that have expired; returns how many."""
        expired = [stored for stored in self._locked.values() if stored.locked_until <= now]
        for stored in expired:
            self._unlock(stored)
        return len(expired)

    def _commit(self, partition: int) -> None:
        """Moves the offset of a log's partition past the acknowledged messages."""
        pending = [at for at in self._items if at >> PARTITION_SHIFT == partition and at not in self._acknowledged]
        front = min(pending, default=None)
        for position in sorted(at for at in self._acknowledged if at >> PARTITION_SHIFT == partition):
            if front is not None and position > front:
                break
            del self._acknowledged[position], self._items[position]

    def _unlock(self, stored: Stored) -> None:
        self._locked.pop(stored.position, None)
        stored.token, stored.owner = 0, None
        if self.max_deliveries and stored.deliveries >= self.max_deliveries and not self.is_log:
            del self._items[stored.position]
            text = f"delivered {stored.deliveries} times"
            self.dead_letters.append(DeadLetter(stored.key, stored.position, "MaxDeliveryCountExceeded", text))
            return
        heapq.heappush(self._waiting[stored.position >> PARTITION_SHIFT], stored.position)
