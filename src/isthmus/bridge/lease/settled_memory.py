"""Redelivery detection after a lost connection: which positions a source may deliver again, and whether it is the same message.

What it is: for each loss the positions that were outstanding then, and those that the target has acknowledged and whose completion the
source may not have processed: completed shortly before the loss, or since, without having come again. The source may deliver these again;
they are completed again instead of being sent twice. What it is not: a duplicate detection: it exists as long as the lease, and has no
messages that were never acknowledged here.

Why no message is mistaken for another. A position is valid only together with the identity of its namespace. If the entity is created
again, or restored to an earlier state, positions are given to other messages; those were enqueued after the loss, and their enqueued time
(`x-opt-enqueued-time`) shows it: it is later than that of the newest message of their partition before the loss. With the first of them
everything of their partition is forgotten. A message without an enqueued time is never taken for a known one. Dead letters keep the
enqueued time of another entity, which is unrelated to their order: of these the time of each is kept, and the same message has the same
one.

Invariants:
    I1. Only positions are kept that were completed before a loss, within `RECENT_SECONDS` before the last of them, or that were outstanding
        then.
    I2. They are forgotten `KEPT_SECONDS` after the source has reconnected, and after the last message that was outstanding at the loss has
        been completed: it comes again only once there is credit for it. They are also forgotten when the source turns out to be another one.
    I3. A position is checked against the first loss since its message came last: later messages may have other numbers.
    I4. A position completed again counts as completed just now: it is kept after another loss, too.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from isthmus.bridge.index_set import IndexSet
from isthmus.bridge.lease.message_age import enqueued_ms
from isthmus.bridge.lease.newest import partition_of
from isthmus.bridge.lease.unsettled import Run, UnsettledMap
from isthmus.bridge.port import PARTITION_SHIFT

__all__ = ["KEPT_SECONDS", "RECENT_SECONDS", "SettledMemory"]

# Completions written so long before a loss is detected may not have reached the source: a silent connection is closed after 60 s
# (`isthmus.transport.client`).
RECENT_SECONDS = 75.0
# Positions completed within this time are kept together, as few ranges: outcomes come out of order.
TOGETHER_SECONDS = 1.0
# A lock lasts five minutes at most; then the message comes again.
KEPT_SECONDS = 600.0
# Of more losses within `KEPT_SECONDS` the first are forgotten: messages completed before them may be sent twice.
MOST_LOSSES = 64
# So many times are kept before unneeded ones are removed.
_FEW_TIMES = 4096


class _Loss:
    """One loss of the connection: `outstanding` has not come again since, `known` was completed."""

    __slots__ = ("known", "newest_ms", "outstanding", "times", "until")

    def __init__(self, newest_ms: Mapping[int, int], times: Mapping[int, int]) -> None:
        self.newest_ms = newest_ms
        self.times = times  # when each message was enqueued, where that is kept
        self.outstanding = UnsettledMap()
        self.known = UnsettledMap()
        self.until = math.inf

    def is_same(self, position: int, taken_in_ms: int) -> bool:
        """Whether a message may be the one that had come under a position; 0: it has no enqueued time."""
        kept_ms = self.times.get(position)
        return 0 < taken_in_ms <= self.newest_of(position) if kept_ms is None else 0 < taken_in_ms == kept_ms

    def is_another(self, position: int, taken_in_ms: int) -> bool:
        """Whether a message is not the one that had come under a position."""
        kept_ms = self.times.get(position)
        return 0 < self.newest_of(position) < taken_in_ms if kept_ms is None else 0 < kept_ms != taken_in_ms > 0

    def newest_of(self, position: int) -> int:
        """The enqueued time of the newest message of its partition; 0 where none has one."""
        return self.newest_ms.get(partition_of(position), 0)


class SettledMemory:
    """The memory of one route."""

    def __init__(self) -> None:
        self._recent: deque[tuple[float, IndexSet]] = deque()  # since when, and the positions completed from then on
        self._losses: list[_Loss] = []
        self._identity = ""
        self._keeps_times = False
        self._times: dict[int, int] = {}  # of outstanding and recently completed messages, and of some more
        self._most_times = _FEW_TIMES

    def came(self, positions: Sequence[int], payloads: Sequence[bytes], unsettled: UnsettledMap) -> None:
        """Messages came that are outstanding now, or are completed again."""
        if not self._keeps_times:
            return
        self._times.update(zip(positions, map(enqueued_ms, payloads), strict=True))
        if len(self._times) > self._most_times:
            self._times = {
                position: at_ms
                for position, at_ms in self._times.items()
                if unsettled.within(position, position) or any(position in recent for _, recent in self._recent)
            }
            self._most_times = max(_FEW_TIMES, 2 * len(self._times))

    def completed(self, first: int, last: int, now: float) -> None:
        """The target has acknowledged these positions, and they were completed at the source."""
        left: list[Run] = [(first, last)]
        for loss in self._losses:
            for low, high in loss.outstanding.settle(first, last):
                _add(loss.known, low, high)
                loss.until = max(loss.until, now + KEPT_SECONDS)
                left = _without(left, low, high)
        recent = self._recent
        if left and (not recent or now >= recent[-1][0] + TOGETHER_SECONDS):
            self._forget_recent(now)
            recent.append((now, IndexSet()))
        for low, high in left:
            recent[-1][1].add(low, high + 1)

    def disposed(self, first: int, last: int) -> None:
        """These positions are no longer outstanding, and were not acknowledged by the target."""
        for loss in self._losses:
            loss.outstanding.settle(first, last)

    def lost(self, now: float, newest_ms: Mapping[int, int], outstanding: Iterable[Run]) -> None:
        """The connection to the source is lost.

        Args:
            now: monotonic seconds.
            newest_ms: by partition, the enqueued time of the newest message.
            outstanding: the delivered and unsettled positions.
        """
        self._forget_old(now)
        loss = _Loss(newest_ms, dict(self._times))
        for first, last in outstanding:
            left: list[Run] = [(first, last)]
            for each in self._losses:
                for low, high in each.outstanding.within(first, last):
                    left = _without(left, low, high)
            for low, high in left:
                _add(loss.outstanding, low, high)
        if self._recent:
            self._forget_recent(self._recent[-1][0])  # not from now: the process may have been stalled since
        for _, positions in self._recent:
            for start, stop in positions:
                _add(loss.known, start, stop - 1)
        self._recent.clear()
        self._losses = [*self._losses[1 - MOST_LOSSES :], loss]

    def opened(self, identity: str, now: float, *, keeps_times: bool = False) -> None:
        """The source is connected. `keeps_times`: times are unrelated to the order of messages."""
        if identity != self._identity:
            self.forget()
        self._identity, self._keeps_times = identity, keeps_times
        for loss in self._losses:
            loss.until = min(loss.until, now + KEPT_SECONDS)

    def given_back(self) -> None:
        """Nothing is outstanding any more."""
        for loss in self._losses:
            loss.outstanding.clear()

    def forget(self) -> None:
        """Forgets all positions, which have become invalid."""
        self._losses.clear()
        self._recent.clear()
        self._times.clear()

    def is_known(self, first: int, last: int, now: float) -> bool:
        """Whether any of these positions was completed before a loss."""
        if not self._losses:
            return False
        self._forget_old(now)
        return any(loss.known.within(first, last) for loss in self._losses)

    def is_again(self, position: int, payload: bytes, now: float) -> bool:
        """Whether this message was completed before."""
        if not self.is_known(position, position, now):
            return False
        taken_in_ms = enqueued_ms(payload)
        for loss in reversed(self._losses):
            if loss.known.within(position, position):
                if loss.is_same(position, taken_in_ms):
                    return True
                first = partition_of(position) << PARTITION_SHIFT
                loss.known.settle(first, first + (1 << PARTITION_SHIFT) - 1)
        return False

    def is_another(self, position: int, payload: bytes) -> bool:
        """Whether this message, under a position that is outstanding, is another one than the one that came first."""
        for loss in self._losses:
            if loss.outstanding.within(position, position):
                if loss.is_another(position, enqueued_ms(payload)):
                    return True
                loss.outstanding.settle(position, position)  # it has come again (I3)
        return False

    def _forget_recent(self, now: float) -> None:
        recent = self._recent
        while recent and recent[0][0] + TOGETHER_SECONDS <= now - RECENT_SECONDS:
            recent.popleft()

    def _forget_old(self, now: float) -> None:
        if self._losses and now >= self._losses[0].until:
            self._losses = [loss for loss in self._losses if now < loss.until or loss.outstanding.outstanding]


def _add(positions: UnsettledMap, first: int, last: int) -> None:
    positions.settle(first, last)
    positions.add(range(first, last + 1), bytes(last + 1 - first))


def _without(runs: list[Run], first: int, last: int) -> list[Run]:
    """Runs without the positions from first to last."""
    parts = [part for low, high in runs for part in ((low, min(high, first - 1)), (max(low, last + 1), high))]
    return [(low, high) for low, high in parts if low <= high]
