"""The unsettled deliveries of a source, across all its links.

What it is: for each delivered position its lock token, and its delivery id if the present link delivered it.
What it is not: it sends nothing and keeps no message.

Invariants:
    I1. A position is unsettled from `add` until the first `take` that covers it.
    I2. A position that is delivered again while it is unsettled replaces the older delivery, whose lock is lost.
    I3. Deliveries of an older link are settled by lock token; delivery ids are only those of the present link.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from isthmus.connectors.servicebus.spark.ledger import Ledger, Span, runs_of

__all__ = ["Taken", "TokenMap"]

# Deliveries that arrive within this time are renewed together, with the earliest.
AGE_STEP_SECONDS = 0.25


class Taken(NamedTuple):
    """Unsettled deliveries: those of the present link, and those that only their lock tokens settle."""

    on_link: list[Span]
    by_token: list[Span]


class TokenMap:
    """The unsettled deliveries of one source."""

    def __init__(self) -> None:
        self._link = Ledger()
        self._old = Ledger()
        self._next_old = 0
        self._ages: deque[tuple[float, int]] = deque()  # when locked, and the delivery id after the last
        self._old_renewed_at: float | None = None  # None: due at once

    @property
    def unsettled(self) -> int:
        """How many deliveries are unsettled."""
        return self._link.outstanding + self._old.outstanding

    def add(self, sequences: Sequence[int], first_id: int, tokens: Sequence[bytes], now: float) -> None:
        """Adds deliveries of the present link; ids do not wrap here."""
        if self._old.outstanding:
            for low, high in runs_of(sequences):
                self._old.settle(sequences[low], sequences[high - 1])
        if not self._link.outstanding:
            self._ages.clear()
        self._link.add(sequences, first_id, tokens)
        behind = first_id + len(tokens)
        if self._ages and now - self._ages[-1][0] < AGE_STEP_SECONDS:
            self._ages[-1] = (self._ages[-1][0], behind)
        else:
            self._ages.append((now, behind))

    def take(self, first: int, last: int) -> Taken:
        """Removes positions first to last; those that are not unsettled are ignored."""
        on_link = self._link.settle(first, last) if self._link.outstanding else []
        by_token = self._old.settle(first, last) if self._old.outstanding else []
        return Taken(on_link, by_token)

    def link_lost(self) -> None:
        """The link is lost; its deliveries are settled by lock token from now on."""
        for span in self._link.clear():
            count = len(span.tokens)
            self._old.add(range(span.sequence, span.sequence + count), self._next_old, span.tokens)
            self._next_old += count
        self._link = Ledger()
        self._ages.clear()
        self._old_renewed_at = None

    # ---- renewal

    def renewal_due(self, lock_seconds: float) -> float:
        """When locks have to be renewed, in monotonic seconds; infinite where nothing is locked."""
        due = float("inf")
        if self._link.outstanding and self._ages:
            due = self._ages[0][0] + lock_seconds / 3
        if self._old.outstanding:
            due = 0.0 if self._old_renewed_at is None else min(due, self._old_renewed_at + lock_seconds / 3)
        return due

    def renew(self, now: float, lock_seconds: float) -> list[bytes]:
        """The lock tokens that have to be renewed now; they count as renewed."""
        horizon = now - lock_seconds / 3
        tokens: list[bytes] = []
        through = 0
        while self._ages and self._ages[0][0] <= horizon:
            through = self._ages.popleft()[1]
        if through:
            for span in self._link.spans():
                if span.delivery_id < through:
                    tokens += span.tokens[: through - span.delivery_id]
            if tokens:
                self._ages.appendleft((now, through))
        if self._old.outstanding and (self._old_renewed_at is None or self._old_renewed_at <= horizon):
            self._old_renewed_at = now
            for span in self._old.spans():
                tokens += span.tokens
        return tokens
