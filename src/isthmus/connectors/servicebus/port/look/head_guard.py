"""Keeps the order of a source while a reader before this one may still hold messages.

What it is: decides for each run of deliveries whether it goes on, is kept until a look has an answer, or goes back because an
earlier message is locked by somebody else: a reader that died leaves its locks behind, and the source delivers what lies
behind them. What it is not: the looking, or the link.

Invariants:
    I1. While it guards, nothing goes on behind a message of its fragment that waits at the source and has not come; an ordinary
        entity has one fragment.
    I2. Runs go on in the order in which they came.
    I3. It guards what the source sent before every lock had expired that a reader before this one can have left behind. What has come,
        or may come under credit granted before, counts as sent before, however late it is read: a process or a network may stand still.
    I4. What is kept stays locked, however long the looks take: its owner renews it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from isthmus.connectors.servicebus.head import FRAGMENT_BITS, Standing
from isthmus.connectors.servicebus.port.look.look import Look, first_hole

__all__ = ["GUARD_SECONDS", "PROBE", "RETRY_SECONDS", "HeadGuard", "Run"]

GUARD_SECONDS = 5.0
RETRY_SECONDS = 1.0
# How many messages are asked for to see whether the one that is waited for is free.
PROBE = 8


class Run(NamedTuple):
    """Consecutive deliveries of one link."""

    first_id: int
    sequences: Sequence[int]
    tokens: Sequence[bytes]
    payloads: Sequence[bytes]

    def part(self, start: int, stop: int) -> Run:
        """Deliveries start up to stop of it."""
        return Run(
            self.first_id + start, self.sequences[start:stop], self.tokens[start:stop], self.payloads[start:stop]
        )


class HeadGuard:
    """The guard of one source.

    Attributes:
        handed_on: the highest sequence number that went on, by fragment.
        until: when the last such lock has expired, in monotonic seconds; the owner sets it.
        ready: runs that go on; the owner takes them.
        refused: runs that go back; the owner takes them.
        look: the look under way, for the owner to serve.
        hole: the message that is waited for.
        retry_at: until when everything goes back; 0 where nothing does.
    """

    def __init__(self) -> None:
        self.handed_on: dict[int, int] = {}
        self.until = 0.0
        self.ready: deque[Run] = deque()
        self.refused: deque[Run] = deque()
        self.look: Look[Standing | None] | None = None
        self.hole: Standing | None = None
        self.retry_at = 0.0
        self._kept: deque[tuple[Run, bool]] = deque()  # whether it has to be looked at; the first is being looked at
        self._sent_before: int | None = (
            None  # deliveries to come that may have been sent before `until`; None before that
        )

    @property
    def kept(self) -> int:
        """Deliveries that wait for the look."""
        return sum(len(run.tokens) for run, _ in self._kept)

    def note_coming(self, count: int, now: float) -> None:
        """So many deliveries have come and are not taken, or may come under the credit of now."""
        if now >= self.until:
            self._sent_before = count if self._sent_before is None else min(count, self._sent_before)

    def take(self, run: Run, now: float, now_ms: int) -> None:
        """A run came; `now_ms` is the source's wall time."""
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
        """When the locks of what is kept have to be renewed; infinite where nothing is."""
        return self._locked_at + lock_seconds / 3 if self._kept else math.inf

    def renew(self, now: float, lock_seconds: float) -> list[bytes]:
        """The lock tokens that have to be renewed now; they count as renewed."""
        if now < self.renewal_due(lock_seconds):
            return []
        self._locked_at = now
        return [token for run, _ in self._kept for token in run.tokens]

    def looked(self, now: float, now_ms: int) -> None:
        """The look has its result."""
        self._decide(now)
        self._go_on(now, now_ms)

    def retry(self) -> None:
        """Nothing more is on its way of what had to go back: the next runs are looked at again."""
        self.retry_at = 0.0

    def link_lost(self) -> None:
        """The link is gone, and with it what was kept."""
        self._kept.clear()
        self.refused.clear()
        self.look = self.hole = self._sent_before = None
        self.retry_at = 0.0

    def clear(self) -> None:
        """What is kept goes back."""
        self.look = None
        self.refused += (run for run, _ in self._kept)
        self._kept.clear()

    def _go_on(self, now: float, now_ms: int) -> None:
        while self._kept and self.look is None:
            run, is_guarded = self._kept[0]
            if not is_guarded:
                self._kept.popleft()
                self.hole = None
                self._hand_on(run)
                continue
            self.look = Look(first_hole(now_ms, self.handed_on, run.sequences))
            self._decide(now)

    def _decide(self, now: float) -> None:
        look = self.look
        if look is None or look.wanted is not None:
            return
        self.look, self.hole = None, look.result
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
