"""Keeps the order of a source while an earlier reader may still have messages locked.

What it is: decides for each run of deliveries whether it is passed on, kept until a peek has its answer, or released because an
earlier message is locked by another receiver: a reader that died leaves locks behind, and the source delivers the messages
after them. What it is not: the peeking, or the link.

Invariants:
    I1. While it guards, no message is passed on after a message of its fragment that waits at the source and was not received; an ordinary
        entity has one fragment.
    I2. Runs are passed on in the order of their arrival.
    I3. It guards the messages that the source sent before every lock of an earlier reader can have expired. Messages that were received,
        or may arrive under credit granted before, count as sent before, however late they are read: a process or a network may stall.
    I4. Kept messages stay locked, however long the peeks take: the owner renews their locks.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from isthmus.connectors.servicebus.head import FRAGMENT_BITS, PeekedMessage
from isthmus.connectors.servicebus.port.peek.query import PeekQuery, first_hole

__all__ = ["GUARD_SECONDS", "PROBE", "RETRY_SECONDS", "HeadGuard", "Run"]

GUARD_SECONDS = 5.0
RETRY_SECONDS = 1.0
# How many messages are peeked to see whether the awaited one is available.
PROBE = 8


class Run(NamedTuple):
    """Consecutive deliveries of one link."""

    first_id: int
    sequences: Sequence[int]
    tokens: Sequence[bytes]
    payloads: Sequence[bytes]

    def part(self, start: int, stop: int) -> Run:
        """The deliveries from `start` up to `stop`."""
        return Run(
            self.first_id + start, self.sequences[start:stop], self.tokens[start:stop], self.payloads[start:stop]
        )


class HeadGuard:
    """The guard of one source.

    Attributes:
        handed_on: the highest sequence number passed on, by fragment.
        until: when the last such lock has expired, in monotonic seconds; the owner sets it.
        ready: runs to pass on; the owner takes them.
        refused: runs to release; the owner takes them.
        query: the pending peek, which the owner serves.
        hole: the awaited message.
        retry_at: until when all messages are released; 0 where none are.
    """

    def __init__(self) -> None:
        self.handed_on: dict[int, int] = {}
        self.until = 0.0
        self.ready: deque[Run] = deque()
        self.refused: deque[Run] = deque()
        self.query: PeekQuery[PeekedMessage | None] | None = None
        self.hole: PeekedMessage | None = None
        self.retry_at = 0.0
        self._kept: deque[tuple[Run, bool]] = (
            deque()
        )  # whether the run has to be checked; the first one is being checked
        self._sent_before: int | None = (
            None  # expected deliveries that may have been sent before `until`; None before that
        )

    @property
    def kept(self) -> int:
        """Deliveries that wait for the peek."""
        return sum(len(run.tokens) for run, _ in self._kept)

    def note_coming(self, count: int, now: float) -> None:
        """So many deliveries were received and are not taken, or may arrive under the present credit."""
        if now >= self.until:
            self._sent_before = count if self._sent_before is None else min(count, self._sent_before)

    def take(self, run: Run, now: float, now_ms: int) -> None:
        """Adds a run; `now_ms` is the source's wall time."""
        is_guarded = now < self.until or self._sent_before != 0
        if self._sent_before is not None:
            self._sent_before = max(0, self._sent_before - len(run.tokens))
        if self.retry_at:
            self.refused.append(run)
            return
        self._kept.append((run, is_guarded))
        if len(self._kept) == 1:
            self._locked_at = now
            self._go_on(now, now_ms)

    def renewal_due(self, lock_seconds: float) -> float:
        """When the locks of kept deliveries have to be renewed; infinite where there are none."""
        return self._locked_at + lock_seconds / 3 if self._kept else math.inf

    def renew(self, now: float, lock_seconds: float) -> list[bytes]:
        """The lock tokens that have to be renewed now; they count as renewed."""
        if now < self.renewal_due(lock_seconds):
            return []
        self._locked_at = now
        return [token for run, _ in self._kept for token in run.tokens]

    def peeked(self, now: float, now_ms: int) -> None:
        """The peek has its result."""
        self._decide(now)
        self._go_on(now, now_ms)

    def retry(self) -> None:
        """No released message is in transit any more: the next runs are checked again."""
        self.retry_at = 0.0

    def link_lost(self) -> None:
        """The link is lost, and with it the kept deliveries."""
        self._kept.clear()
        self.refused.clear()
        self.query = self.hole = self._sent_before = None
        self.retry_at = 0.0

    def clear(self) -> None:
        """Releases the kept deliveries."""
        self.query = None
        self.refused += (run for run, _ in self._kept)
        self._kept.clear()

    def _go_on(self, now: float, now_ms: int) -> None:
        while self._kept and self.query is None:
            run, is_guarded = self._kept[0]
            if not is_guarded:
                self._kept.popleft()
                self.hole = None
                self._hand_on(run)
                continue
            self.query = PeekQuery(first_hole(now_ms, self.handed_on, run.sequences))
            self._decide(now)

    def _decide(self, now: float) -> None:
        query = self.query
        if query is None or query.wanted is not None:
            return
        self.query, self.hole = None, query.result
        run, _ = self._kept.popleft()
        if self.hole is None:
            self._hand_on(run)
            return
        hole = self.hole.sequence
        keep = next((i for i, sequence in enumerate(run.sequences) if sequence > hole), len(run.sequences))
        if keep:
            self._hand_on(run.part(0, keep))
        if keep < len(run.sequences):
            self.refused.append(run.part(keep, len(run.sequences)))
        self.clear()
        self.retry_at = now + RETRY_SECONDS

    def _hand_on(self, run: Run) -> None:
        sequences = run.sequences
        for sequence in sequences[-1:] if isinstance(sequences, range) else sequences:
            fragment = sequence >> FRAGMENT_BITS
            self.handed_on[fragment] = max(self.handed_on.get(fragment, 0), sequence)
        self.ready.append(run)
