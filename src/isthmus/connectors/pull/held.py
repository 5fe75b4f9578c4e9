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

__all__ = ["Held", "Job", "Locks"]

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
class Held:
    """A locked message.

    Attributes:
        lease: the lock on it.
        position: the position with which it was reported.
        message: encoded.
        wish: the request that settles it; NONE while the route has it.
        disposition: why it is set aside.
        renew_at: when to renew its lock.
        is_busy: whether a request about it is in flight.
        is_queued: whether it waits for one.
    """

    lease: Lease
    position: int
    message: bytes
    wish: Job = Job.NONE
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
        self._by_name: dict[str, Held] = {}
        self._by_position: dict[int, Held] = {}
        self._waiting: deque[Held] = deque()
        self._jobs: dict[Job, deque[Held]] = {job: deque() for job in (Job.COMPLETE, Job.RELEASE, Job.SET_ASIDE)}
        self._renewals: list[
            tuple[float, int, Held]
        ] = []  # a heap; an entry whose time differs from the message's is void
        self._entries = itertools.count()
        self._settled: dict[str, None] = {}  # names, the oldest first
        self._under_way = 0

    def __len__(self) -> int:
        return len(self._by_name)

    @property
    def waiting(self) -> int:
        """Messages that were not taken yet."""
        return len(self._waiting)

    @property
    def has_jobs(self) -> bool:
        """Whether a settlement is due or in flight."""
        return bool(self._under_way or any(self._jobs.values()))

    # ---- received messages

    def arrive(self, pulled: Iterable[Pulled], now: float) -> int:
        """Adds messages; returns how many of them are new for the route."""
        count = 0
        for each in pulled:
            held = self._by_name.get(each.lease.name)
            if held is not None:
                count += self._again(held, each.lease, now)
                continue
            held = Held(each.lease, next(_positions), each.message)
            self._by_name[each.lease.name] = held
            self._by_position[held.position] = held
            self._lease(held, each.lease, now)
            if each.deliveries > 1 and each.lease.name in self._settled:
                self._wish(held, Job.COMPLETE)
            elif each.unreadable:
                self._wish(held, Job.SET_ASIDE, Disposition("dead-letter", UNREADABLE, each.unreadable))
            elif self._max_deliveries and each.deliveries > self._max_deliveries:
                text = f"delivered {each.deliveries} times; max_deliveries is {self._max_deliveries}"
                self._wish(held, Job.SET_ASIDE, Disposition("dead-letter", TOO_OFTEN, text))
            else:
                self._waiting.append(held)
                count += 1
        return count

    def _again(self, held: Held, lease: Lease, now: float) -> int:
        self._lease(held, lease, now)
        if held.wish is Job.RELEASE:  # the release has taken effect
            del self._by_position[held.position]
            held.wish, held.position = Job.NONE, next(_positions)
            self._by_position[held.position] = held
            self._waiting.append(held)
            return 1
        return 0

    def _lease(self, held: Held, lease: Lease, now: float) -> None:
        held.lease = lease
        held.renew_at = now + lease.seconds / 2 if lease.seconds else math.inf
        self._plan(held)

    def _plan(self, held: Held) -> None:
        if held.renew_at < math.inf:
            heapq.heappush(self._renewals, (held.renew_at, next(self._entries), held))

    # ---- calls of the owner

    def take(self, count: int) -> list[Held]:
        """The next messages for the route."""
        taken: list[Held] = []
        while self._waiting and len(taken) < count:
            held = self._waiting.popleft()
            if held.wish is Job.NONE:
                taken.append(held)
        return taken

    def settle(self, first: int, last: int, disposition: Disposition | None = None) -> int:
        """Completes messages, or sets them aside; returns how many were locked."""
        job = Job.COMPLETE if disposition is None else Job.SET_ASIDE
        found = self._within(first, last)
        for held in found:
            self._wish(held, job, disposition)
        return len(found)

    def release(self, first: int, last: int) -> None:
        """Releases messages."""
        for held in self._within(first, last):
            self._wish(held, Job.RELEASE)

    def release_all(self) -> None:
        """Releases every message that is not settled."""
        self._waiting.clear()
        for held in list(self._by_name.values()):
            if held.wish is Job.NONE:
                self._wish(held, Job.RELEASE)

    def _within(self, first: int, last: int) -> list[Held]:
        if last - first < len(self._by_position):
            found = (self._by_position.get(position) for position in range(first, last + 1))
            return [held for held in found if held is not None and held.wish is Job.NONE]
        return [held for at, held in sorted(self._by_position.items()) if first <= at <= last and held.wish is Job.NONE]

    def _wish(self, held: Held, job: Job, disposition: Disposition | None = None) -> None:
        held.wish, held.disposition = job, disposition
        self._queue(held)

    def _queue(self, held: Held) -> None:
        if not held.is_busy and not held.is_queued and held.wish is not Job.NONE:
            held.is_queued = True
            self._jobs[held.wish].append(held)

    # ---- requests

    def next_jobs(self, now: float, count: int) -> tuple[Job, list[Held]]:
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
            taken: list[Held] = []
            limit = 1 if job is Job.SET_ASIDE else count
            while queue and len(taken) < limit:
                held = queue.popleft()
                held.is_queued = False
                if held.wish is not job:  # it was delivered again since
                    self._queue(held)
                    continue
                held.is_busy = True
                taken.append(held)
            if taken:
                self._under_way += 1
                return job, taken
        return Job.NONE, []

    def _due(self, now: float, count: int, *, is_urgent: bool = False) -> list[Held]:
        """Messages to renew: from half of a lock's time on, if nothing is to be completed; from three quarters on, before all else."""
        due: list[Held] = []
        while len(due) < count and self.next_renewal() <= now:
            first = self._renewals[0][2]
            if is_urgent and now < first.renew_at + first.lease.seconds / 4:
                break
            held = heapq.heappop(self._renewals)[2]
            if not held.is_busy:
                held.is_busy = True
                due.append(held)
        if due:
            self._under_way += 1
        return due

    def next_renewal(self) -> float:
        """When a lock is to be renewed; infinite where no renewal is needed."""
        while self._renewals:
            renew_at, _, held = self._renewals[0]
            # A waiting settlement precedes the end of its lock; if not, the message is only delivered again.
            if held.renew_at == renew_at and held.wish is Job.NONE and self._by_name.get(held.lease.name) is held:
                return renew_at
            heapq.heappop(self._renewals)
        return math.inf

    def renewed(self, helds: Sequence[Held], leases: Sequence[Lease | None], now: float) -> None:
        """Takes the answers to renewals."""
        self._under_way -= 1
        for held, lease in zip(helds, leases, strict=True):
            held.is_busy = False
            if lease is not None:
                self._lease(held, lease, now)
            else:
                held.renew_at = math.inf
            self._queue(held)

    def done(self, job: Job, helds: Sequence[Held], receipts: Sequence[str], taken: Sequence[bool]) -> None:
        """Takes the answers to settlements that were made with these receipts."""
        self._under_way -= 1
        for held, receipt, is_taken in zip(helds, receipts, taken, strict=True):
            held.is_busy = False
            if held.wish is not job or (not is_taken and held.lease.receipt != receipt):
                self._queue(held)  # it was delivered again meanwhile
                continue
            if job is Job.COMPLETE:
                self._remember(held.lease.name, is_taken=is_taken)
            if self._by_name.get(held.lease.name) is held:
                del self._by_name[held.lease.name]
            self._by_position.pop(held.position, None)

    def _remember(self, name: str, *, is_taken: bool) -> None:
        self._settled.pop(name, None)
        if not is_taken:
            self._settled[name] = None
            if len(self._settled) > REMEMBERED:
                del self._settled[next(iter(self._settled))]

    def failed(self, helds: Sequence[Held], now: float) -> None:
        """A request about these messages failed; its effect is unknown."""
        self._under_way -= 1
        for held in reversed(helds):
            held.is_busy = False
            if held.wish is Job.NONE:
                held.renew_at = now
                self._plan(held)
            elif not held.is_queued:
                held.is_queued = True
                self._jobs[held.wish].appendleft(held)
