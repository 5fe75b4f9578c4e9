"""The messages that exist at a source when it is opened, for a run that moves these and ends.

What it is: the last sequence number of each fragment at the first opening, which deliveries belong to it, and when it is
completely delivered. What it is not: the queries (`node`).

Invariants:
    I1. No message after the last sequence number of the first opening belongs to it.
    I2. It is over when the last has been delivered, or when no message arrived for `IDLE_SECONDS`, nothing is unsettled and a query
        finds no message that another receiver has locked.
    I3. After a lost link it begins again with the remaining messages.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from isthmus.connectors.servicebus.head import FRAGMENT_BITS, PeekedMessage
from isthmus.connectors.servicebus.port.peek.head_guard import Run
from isthmus.connectors.servicebus.port.peek.query import PeekQuery, Steps, first_waiting, last_sequences

__all__ = ["Present"]

IDLE_SECONDS = 1.0
CHECK_SECONDS = 0.25
# For a fragment whose last never arrives: only a query detects the end.
_BY_QUERY = -1


class Present:
    """The messages that existed at a source's first opening.

    Args:
        in_order: whether deliveries have the order of their sequence numbers, so that the last one marks the end; else only a query does.

    Attributes:
        is_over: whether everything has been delivered.
        locked: the sequence number of a message that another receiver has locked; 0 where none is known.
    """

    def __init__(self, *, in_order: bool = True) -> None:
        self._in_order = in_order
        self.is_over = False
        self.locked = 0
        self._first: PeekQuery[dict[int, int]] | None = None
        self._last: PeekQuery[PeekedMessage | None] | None = None
        self._lasts: dict[int, int] | None = None
        self._left: set[int] = set()  # fragments whose last has not arrived
        self._check_at = math.inf

    def begin(self, now: float) -> PeekQuery[dict[int, int]] | None:
        """The query before the source is open; None once the existing messages are known."""
        if self._lasts is None:
            if self._first is None:
                self._first = PeekQuery(last_sequences())
            if self._first.result is None:
                return self._first
            self._lasts = self._first.result
            self._left = set(self._lasts) if self._in_order else {_BY_QUERY}
            self.is_over = not self._lasts
        self._check_at = now + IDLE_SECONDS
        return None

    def belong(self, sequences: Sequence[int]) -> list[bool] | bool:
        """Which numbers belong to them: all, none, or one answer for each."""
        lasts = self._lasts or {}
        if self.is_over:
            return False
        kept = [sequence <= lasts.get(sequence >> FRAGMENT_BITS, -1) for sequence in sequences]
        return all(kept) or (kept if any(kept) else False)

    def divided(self, run: Run) -> tuple[list[Run], list[Run]]:
        """The parts of a run that belong to them, and those that do not."""
        belong = self.belong(run.sequences)
        if isinstance(belong, bool):
            return ([run], []) if belong else ([], [run])
        parts = [run.part(at, at + 1) for at in range(len(belong))]
        return [part for part, is_in in zip(parts, belong, strict=True) if is_in], [
            part for part, is_in in zip(parts, belong, strict=True) if not is_in
        ]

    def given(self, sequences: Sequence[int], now: float) -> None:
        """Deliveries were passed to the owner."""
        self._check_at, self.locked = now + IDLE_SECONDS, 0
        lasts = self._lasts or {}
        highest = max(sequences)
        for fragment in list(self._left):
            last = lasts.get(fragment)
            if last is None:
                continue
            if (highest >> FRAGMENT_BITS == fragment and highest >= last) or last in sequences:
                self._left.discard(fragment)
        self.is_over = not self._left

    def check(self, now: float, now_ms: int, *, is_idle: bool) -> PeekQuery[PeekedMessage | None] | None:
        """The query that is due; `is_idle`: the link has credit, nothing is unsettled, kept or being released."""
        if self.is_over or now < self._check_at or self._last is not None:
            return None
        if not is_idle:
            self._check_at = now + CHECK_SECONDS
            return None
        self._last = PeekQuery(self._steps(now_ms))
        return self._last

    def peeked(self, now: float) -> None:
        """The query of `check` has its result."""
        query, self._last = self._last, None
        if query is None:
            return
        self.locked = query.result.sequence if query.result is not None else 0
        self.is_over = not self.locked
        self._check_at = now + IDLE_SECONDS

    def deadline(self) -> float:
        """When `check` has work."""
        return math.inf if self.is_over or self._last is not None else self._check_at

    def link_lost(self) -> None:
        """The link is lost: unsettled deliveries may be redelivered."""
        self._first = self._first if self._lasts is not None else None
        self._last = None
        self._check_at = math.inf
        if self._lasts:
            self.is_over = False
            self._left = {_BY_QUERY}

    def _steps(self, now_ms: int) -> Steps[PeekedMessage | None]:
        for fragment, last in (self._lasts or {}).items():
            found = yield from first_waiting(now_ms, fragment << FRAGMENT_BITS, last)
            if found is not None:
                return found
        return None
