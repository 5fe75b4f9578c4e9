"""The work that is due in one store: ends of locks, scheduled messages, expired messages.

What it is: due work, found by indexes (`wake`, `queue.calendar`) and given to its entity, a bounded amount per tick; an entity
that raises is skipped for a while. What it is not: the work itself, or the schedule of ticks (`engine`).
Spec: docs/explanation/protocol.md, Settlement, Message.

Invariants:
    I1. The cost of a tick depends on the due work, not on the number of messages.
    I2. An error of one entity leaves nothing half done, and costs the others only that tick.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from isthmus.entities.member.context import Context
from isthmus.entities.queue.calendar import BUCKET_MS
from isthmus.entities.queue.intake import Intake
from isthmus.entities.storage.staging import Failure
from isthmus.entities.wake import Wakes

__all__ = ["Clockwork"]

_log = logging.getLogger(__name__)

_AT_ONCE = 1000
_FAULT_PAUSE_MS = 60_000


class Clockwork:
    """The due work of one store.

    Args:
        context: of its entities.
        wakes: when the locks of each queue are checked.
        find: the entity that has a number now; None if there is none.
        fail: fails everything that is staged, with the reason.
    """

    __slots__ = ("_context", "_current", "_fail", "_find", "_paused", "_wakes")

    def __init__(self, context: Context, wakes: Wakes, find: Callable[[int], Intake | None], fail: Failure) -> None:
        self._context = context
        self._wakes = wakes
        self._find = find
        self._fail = fail
        # Entities whose work raised an unexpected error, by number: the monotonic ms until which they are skipped.
        self._paused: dict[int, int] = {}
        # The number of the entity whose work runs; 0 for none.
        self._current = 0

    def tick(self, now_ms: int, steady_ms: int) -> None:
        """Do a bounded part of the due work.

        Args:
            now_ms: wall time.
            steady_ms: monotonic time.

        Raises:
            StoreError: the store refused a write, and everything staged has failed; or a read that belongs to no entity.
        """
        if any(until_ms <= steady_ms for until_ms in self._paused.values()):
            self._context.calendar.recheck()
            self._paused = {number: until_ms for number, until_ms in self._paused.items() if until_ms > steady_ms}
        staging = self._context.staging
        drops, self._current = staging.drops, 0
        try:
            self._expire_locks(steady_ms)
            self._activate(now_ms)
            self._expire_messages(now_ms)
        except Exception as fault:
            number = self._current
            if staging.drops != drops or not number:
                raise
            # The fault of one entity, also a read that its disk refuses, must not stop the others permanently (I2).
            _log.exception("entity skipped for %d s by a fault: number=%d", _FAULT_PAUSE_MS // 1000, number)
            self._paused[number] = steady_ms + _FAULT_PAUSE_MS
            self._fail(fault)

    def next_ms(self, now_ms: int, steady_ms: int) -> int | None:
        """Wall ms of the next tick; None if nothing is pending."""
        calendar = self._context.calendar
        waits = [calendar.next_due_ms, calendar.next_expiry_ms]
        waits += [now_ms + until_ms - steady_ms for until_ms in self._paused.values()]
        if self._wakes.next_ms is not None:
            waits.append(now_ms + self._wakes.next_ms - steady_ms)
        return min((at_ms for at_ms in waits if at_ms is not None), default=None)

    def _expire_locks(self, steady_ms: int) -> None:
        for queue in self._wakes.due(steady_ms):
            self._current = queue.number
            paused_ms = self._paused.get(queue.number)
            next_ms = paused_ms or (None if queue.is_deleted else queue.expire_locks(steady_ms))
            if next_ms is not None:
                self._wakes.add(queue, next_ms)
        self._current = 0

    def _activate(self, now_ms: int) -> None:
        calendar = self._context.calendar
        due = calendar.due(now_ms, _AT_ONCE, self._paused)
        if not due:
            return
        by_number: dict[int, list[tuple[int, int]]] = {}
        for due_ms, number, sequence in due:
            by_number.setdefault(number, []).append((due_ms, sequence))
        for number, messages in by_number.items():
            member = self._find(number)
            self._current = number
            if member is not None:
                member.activate(messages, now_ms)
            else:
                for due_ms, sequence in messages:
                    calendar.unschedule(due_ms, number, sequence)
        self._current = 0
        calendar.advance(self._paused)

    def _expire_messages(self, now_ms: int) -> None:
        calendar = self._context.calendar
        runs = calendar.expired(now_ms, _AT_ONCE, self._paused)
        if not runs:
            return
        budget = _AT_ONCE
        for bucket, number, first, last in runs:
            self._current = number
            member = self._find(number) or self._context.sessions.get(number)
            left = None
            if member is not None:
                left = member.expire_messages(first, last, min(now_ms, bucket * BUCKET_MS), _AT_ONCE)
            calendar.settle(bucket, number, first, left)
            budget -= min(last - first + 1, _AT_ONCE)
            if budget <= 0:
                break
        self._current = 0
        calendar.advance(self._paused)
