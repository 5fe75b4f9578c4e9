"""The messages that a source has locked, and the next request about each: decided without I/O.

What it is: the account of locks: which messages were received, taken, are to be settled, released, renewed or set aside, in which order, and
the effect of an answer. What it is not: a request (`threads`).

Invariants:
    I1. At most one request about a message is in flight.
    I2. A message that is delivered again while it is locked is not reported again: its new receipt replaces the old one.
    I3. A message leaves the account only when it was completed, set aside or released, or when its lock is lost after it was settled.
    I4. A request that failed is repeated.
    I5. A message whose lock was lost after it was completed is completed when it is delivered again, and not reported. It is recognised by
        its name and by the system, which reports that it was delivered before.
"""

from __future__ import annotations

import enum
import heapq
import itertools
import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from isthmus.bridge.delivery_event import Disposition
from isthmus.connectors.pull.puller import Lease, Pulled

__all__ = ["LockedMessage", "Job", "Locks"]

# Messages that were completed with a receipt that had expired, e.g. because the answer to a renewal was lost.
REMEMBERED = 10_000

# Unique in the process: settled messages are remembered by position, also when another source replaces this one.
_positions = itertools.count(1)
TOO_OFTEN = "MaxDeliveryCountExceeded"
UNREADABLE = "Unreadable"


class Job(enum.Enum):
    """The next request about a message."""

    NONE = "none"
    RENEW = "renew"
    COMPLETE = "complete"
    RELEASE = "release"
    SET_ASIDE = "set-aside"


@dataclass(slots=True, eq=False)
class LockedMessage:
    """A locked message.

    Attributes:
        lease: the lock on it.
        position: the position with which it was reported.
        message: encoded.
        next_job: the request that settles it; NONE while the route has it.
        disposition: why it is set aside.
        renew_at: when to renew its lock.
        is_busy: whether a request about it is in flight.
        is_queued: whether it waits for one.
    """

    lease: Lease
    position: int
    message: bytes
    next_job: Job = Job.NONE
    disposition: Disposition | None = None
    renew_at: float = math.inf
    is_busy: bool = False
    is_queued: bool = False


class Locks:
    """The account of one source.

    Args:
        max_deliveries: a message that was delivered more often is set aside; 0: none is.
    """

    def __init__(self, max_deliveries: int) -> None:
        self._max_deliveries = max_deliveries
        self._by_name: dict[str, LockedMessage] = {}
        self._by_position: dict[int, LockedMessage] = {}
        self._waiting: deque[LockedMessage] = deque()
        self._jobs: dict[Job, deque[LockedMessage]] = {
            job: deque() for job in (Job.COMPLETE, Job.RELEASE, Job.SET_ASIDE)
        }
        self._renewals: list[
            tuple[float, int, LockedMessage]
        ] = []  # a heap; an entry whose time differs from the message's is void
        self._entries = itertools.count()
        self._settled: dict[str, None] = {}  # names, the oldest first
        self._in_flight = 0

    def __len__(self) -> int:
        return len(self._by_name)

    @property
    def waiting(self) -> int:
        """Messages that were not taken yet."""
        return len(self._waiting)

    @property
    def has_jobs(self) -> bool:
        """Whether a settlement is due or in flight."""
        return bool(self._in_flight or any(self._jobs.values()))

    # ---- received messages

    def arrive(self, pulled: Iterable[Pulled], now: float) -> int:
        """Adds messages; returns how many of them are new for the route."""
        count = 0
        for each in pulled:
            locked = self._by_name.get(each.lease.name)
            if locked is not None:
                count += self._again(locked, each.lease, now)
                continue
            locked = LockedMessage(each.lease, next(_positions), each.message)
            self._by_name[each.lease.name] = locked
            self._by_position[locked.position] = locked
            self._lease(locked, each.lease, now)
            if each.deliveries > 1 and each.lease.name in self._settled:
                self._set_next_job(locked, Job.COMPLETE)
            elif each.unreadable:
                self._set_next_job(locked, Job.SET_ASIDE, Disposition("dead-letter", UNREADABLE, each.unreadable))
            elif self._max_deliveries and each.deliveries > self._max_deliveries:
                text = f"delivered {each.deliveries} times; max_deliveries is {self._max_deliveries}"
                self._set_next_job(locked, Job.SET_ASIDE, Disposition("dead-letter", TOO_OFTEN, text))
            else:
                self._waiting.append(locked)
                count += 1
        return count

    def _again(self, locked: LockedMessage, lease: Lease, now: float) -> int:
        self._lease(locked, lease, now)
        if locked.next_job is Job.RELEASE:  # the release has taken effect
            del self._by_position[locked.position]
            locked.next_job, locked.position = Job.NONE, next(_positions)
            self._by_position[locked.position] = locked
            self._waiting.append(locked)
            return 1
        return 0

    def _lease(self, locked: LockedMessage, lease: Lease, now: float) -> None:
        locked.lease = lease
        locked.renew_at = now + lease.seconds / 2 if lease.seconds else math.inf
        self._plan(locked)

    def _plan(self, locked: LockedMessage) -> None:
        if locked.renew_at < math.inf:
            heapq.heappush(self._renewals, (locked.renew_at, next(self._entries), locked))

    # ---- calls of the owner

    def take(self, count: int) -> list[LockedMessage]:
        """The next messages for the route."""
        taken: list[LockedMessage] = []
        while self._waiting and len(taken) < count:
            locked = self._waiting.popleft()
            if locked.next_job is Job.NONE:
                taken.append(locked)
        return taken

    def settle(self, first: int, last: int, disposition: Disposition | None = None) -> int:
        """Completes messages, or sets them aside; returns how many were locked."""
        job = Job.COMPLETE if disposition is None else Job.SET_ASIDE
        found = self._within(first, last)
        for locked in found:
            self._set_next_job(locked, job, disposition)
        return len(found)

    def release(self, first: int, last: int) -> None:
        """Releases messages."""
        for locked in self._within(first, last):
            self._set_next_job(locked, Job.RELEASE)

    def release_all(self) -> None:
        """Releases every message that is not settled."""
        self._waiting.clear()
        for locked in list(self._by_name.values()):
            if locked.next_job is Job.NONE:
                self._set_next_job(locked, Job.RELEASE)

    def _within(self, first: int, last: int) -> list[LockedMessage]:
        if last - first < len(self._by_position):
            found = (self._by_position.get(position) for position in range(first, last + 1))
            return [locked for locked in found if locked is not None and locked.next_job is Job.NONE]
        return [
            locked
            for at, locked in sorted(self._by_position.items())
            if first <= at <= last and locked.next_job is Job.NONE
        ]

    def _set_next_job(self, locked: LockedMessage, job: Job, disposition: Disposition | None = None) -> None:
        locked.next_job, locked.disposition = job, disposition
        self._queue(locked)

    def _queue(self, locked: LockedMessage) -> None:
        if not locked.is_busy and not locked.is_queued and locked.next_job is not Job.NONE:
            locked.is_queued = True
            self._jobs[locked.next_job].append(locked)

    # ---- requests

    def next_jobs(self, now: float, count: int) -> tuple[Job, list[LockedMessage]]:
        """The next request and its messages; NONE where none is due."""
        due = self._due(now, count, is_urgent=True)
        if due:
            return Job.RENEW, due
        for job in (Job.COMPLETE, Job.RENEW, Job.SET_ASIDE, Job.RELEASE):
            if job is Job.RENEW:
                due = self._due(now, count)
                if due:
                    return job, due
                continue
            queue = self._jobs[job]
            taken: list[LockedMessage] = []
            limit = 1 if job is Job.SET_ASIDE else count
            while queue and len(taken) < limit:
                locked = queue.popleft()
                locked.is_queued = False
                if locked.next_job is not job:  # it was delivered again since
                    self._queue(locked)
                    continue
                locked.is_busy = True
                taken.append(locked)
            if taken:
                self._in_flight += 1
                return job, taken
        return Job.NONE, []

    def _due(self, now: float, count: int, *, is_urgent: bool = False) -> list[LockedMessage]:
        """Messages to renew: from half of a lock's time on, if nothing is to be completed; from three quarters on, before all else."""
        due: list[LockedMessage] = []
        while len(due) < count and self.next_renewal() <= now:
            first = self._renewals[0][2]
            if is_urgent and now < first.renew_at + first.lease.seconds / 4:
                break
            locked = heapq.heappop(self._renewals)[2]
            if not locked.is_busy:
                locked.is_busy = True
                due.append(locked)
        if due:
            self._in_flight += 1
        return due

    def next_renewal(self) -> float:
        """When a lock is to be renewed; infinite where no renewal is needed."""
        while self._renewals:
            renew_at, _, locked = self._renewals[0]
            # A waiting settlement precedes the end of its lock; if not, the message is only delivered again.
            if (
                locked.renew_at == renew_at
                and locked.next_job is Job.NONE
                and self._by_name.get(locked.lease.name) is locked
            ):
                return renew_at
            heapq.heappop(self._renewals)
        return math.inf

    def renewed(self, locked_messages: Sequence[LockedMessage], leases: Sequence[Lease | None], now: float) -> None:
        """Takes the answers to renewals."""
        self._in_flight -= 1
        for locked, lease in zip(locked_messages, leases, strict=True):
            locked.is_busy = False
            if lease is not None:
                self._lease(locked, lease, now)
            else:
                locked.renew_at = math.inf
            self._queue(locked)

    def done(
        self, job: Job, locked_messages: Sequence[LockedMessage], receipts: Sequence[str], taken: Sequence[bool]
    ) -> None:
        """Takes the answers to settlements that were made with these receipts."""
        self._in_flight -= 1
        for locked, receipt, is_taken in zip(locked_messages, receipts, taken, strict=True):
            locked.is_busy = False
            if locked.next_job is not job or (not is_taken and locked.lease.receipt != receipt):
                self._queue(locked)  # it was delivered again meanwhile
                continue
            if job is Job.COMPLETE:
                self._remember(locked.lease.name, is_taken=is_taken)
            if self._by_name.get(locked.lease.name) is locked:
                del self._by_name[locked.lease.name]
            self._by_position.pop(locked.position, None)

    def _remember(self, name: str, *, is_taken: bool) -> None:
        self._settled.pop(name, None)
        if not is_taken:
            self._settled[name] = None
            if len(self._settled) > REMEMBERED:
                del self._settled[next(iter(self._settled))]

    def failed(self, locked_messages: Sequence[LockedMessage], now: float) -> None:
        """A request about these messages failed; its effect is unknown."""
        self._in_flight -= 1
        for locked in reversed(locked_messages):
            locked.is_busy = False
            if locked.next_job is Job.NONE:
                locked.renew_at = now
                self._plan(locked)
            elif not locked.is_queued:
                locked.is_queued = True
                self._jobs[locked.next_job].appendleft(locked)
