"""The account of one route's messages.

What it is: which positions are outstanding, which of them a step removed, which one is dead-lettered unread because workers crashed
with it, and the counts. What it is not: the decisions about an opening or its end (`lease`).

Invariants:
    I1. A position that comes again while it is outstanding is not handed on again: the sink still has it.
    I2. One that comes again after its target has acknowledged it is completed again, where its completion may have been lost.
    I3. The position that the driver named is dead-lettered whenever it comes, except while it is outstanding, and counted once. Where a
        system keeps no positions from process to process, driver and reader identify the message by its content (`content_name`).
    I4. A position that is outstanding and comes again with another message is reported (`replaced`), and never completed with the first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from isthmus.bridge.delivery_event import DIVERT, Disposition
from isthmus.bridge.lease.content_name import content_name
from isthmus.bridge.lease.crash_search import SET_ASIDE_REASON, Plan
from isthmus.bridge.lease.event import Effect, Release, Report, Settle
from isthmus.bridge.lease.message_age import age_ms
from isthmus.bridge.lease.newest import Newest
from isthmus.bridge.lease.row_account import RowAccount
from isthmus.bridge.lease.settled_memory import SettledMemory
from isthmus.bridge.lease.state import LeaseCounts
from isthmus.bridge.lease.unsettled import Run, UnsettledMap, runs_of

__all__ = ["MessageAccount"]

# With more in flight no message is identified by its content: a search for one that crashes workers narrows the window to fewer.
_FEW_NAMED = 16
# How long the age of the last message is reported.
LAG_SECONDS = 2.0


class MessageAccount:
    """The messages of one route.

    Args:
        counts: the initial counts.
        has_steps: whether rows go through custom steps, which may remove some.

    Attributes:
        unsettled: the outstanding positions.
        plan: the driver's plan after workers crashed.
        memory: completed positions that may come again.
        is_numbered_again: whether the source's system may give positions to other messages, which is detected by their times; the
            connectors of logs detect it themselves.
        is_known_by_content: whether positions mean nothing to the next process, so that messages are identified by their content.
        replaced: a position under which another message came while it was outstanding; 0: none.
        is_awaited: whether the target has some of the outstanding messages, as the sink reported last.
    """

    def __init__(self, counts: LeaseCounts, has_steps: bool) -> None:
        self.counts = counts
        self.unsettled = UnsettledMap()
        self.plan = Plan()
        self.memory = SettledMemory()
        self._has_steps = has_steps
        self._rows = RowAccount()
        self._last_came: tuple[float, bytes] = (-math.inf, b"")
        self.is_numbered_again = False
        self.is_known_by_content = False
        self._names: dict[int, int] = {}  # by position, of outstanding messages and of some earlier ones
        self.replaced = 0
        self.is_awaited = False
        self._newest = Newest()

    def new_opening(self) -> None:
        """Begins an opening: messages handed on from now on have another handle."""
        self._rows = RowAccount()
        self._newest = Newest() if self.replaced else self._newest
        self.replaced = 0
        self.is_awaited = False
        self.counts.new_opening()

    def admit(
        self,
        positions: Sequence[int],
        payloads: Sequence[bytes],
        sizes: Sequence[int],
        now: float,
        effects: list[Effect],
    ) -> tuple[Sequence[int], Sequence[bytes], Sequence[int]]:
        """Takes messages; returns those to hand on, with their sizes, which are outstanding from now on."""
        self._last_came = now, payloads[-1]
        self._newest.came(positions, payloads)
        if self._is_any_known(positions, payloads, now):
            fresh = [at for at in range(len(sizes)) if self._is_fresh(positions[at], payloads[at], now, effects)]
            positions, payloads = [positions[at] for at in fresh], [payloads[at] for at in fresh]
            sizes = [sizes[at] for at in fresh]
        self.counts.received_bytes += sum(sizes)
        self.unsettled.add(positions, sizes)
        if self.is_known_by_content:
            self._name(positions, payloads)
        self.memory.came(positions, payloads, self.unsettled)
        if self._has_steps and positions:
            self._rows.handed_on(positions)
        return positions, payloads, sizes

    def _name(self, positions: Sequence[int], payloads: Sequence[bytes]) -> None:
        if self.unsettled.outstanding > _FEW_NAMED:
            return
        self._names.update(zip(positions, map(content_name, payloads), strict=True))
        if len(self._names) > 4 * _FEW_NAMED:
            within = self.unsettled.within
            self._names = {position: name for position, name in self._names.items() if within(position, position)}

    @property
    def head(self) -> int:
        """The driver's identification of the first outstanding message; 0 where there is none, or it is unknown."""
        first = self.unsettled.first or 0
        return self._names.get(first, 0) if self.is_known_by_content else first

    def _is_named(self, position: int, payload: bytes) -> bool:
        """Whether the driver has named this message."""
        named = self.plan.set_aside
        return bool(named) and named == (content_name(payload) if self.is_known_by_content else position)

    def _is_any_known(self, positions: Sequence[int], payloads: Sequence[bytes], now: float) -> bool:
        """Whether some of these are outstanding, were completed, or have to be set aside."""
        set_aside = self.plan.set_aside
        if set_aside and self.is_known_by_content:
            return True  # each is checked
        for low, high in runs_of(positions):
            first, last = positions[low], positions[high - 1]
            if (set_aside and first <= set_aside <= last) or self.unsettled.within(first, last):
                return True
            if self.memory.is_known(first, last, now):
                return True
        return False

    def _is_fresh(self, position: int, payload: bytes, now: float, effects: list[Effect]) -> bool:
        plan, counts = self.plan, self.counts
        if self.unsettled.within(position, position):
            if self.memory.is_another(position, payload) and self.is_numbered_again:
                self.replaced = position
            return False
        if not self._is_named(position, payload):
            is_again = self.memory.is_again(position, payload, now)
            if is_again:
                effects.append(Settle(position, position))
                self.memory.completed(position, position, now)
                self.memory.came((position,), (payload,), self.unsettled)
            return not is_again
        text = f"{plan.deaths} workers in a row died while this message alone was under way"
        effects.append(Settle(position, position, Disposition("dead-letter", SET_ASIDE_REASON, text)))
        if plan.set_aside not in counts.set_aside:
            counts.settled += 1
            counts.disposed["dead-letter"] += 1
            counts.set_aside.append(plan.set_aside)
        effects.append(Report())
        return False

    def settle(self, runs: Sequence[Run], disposition: Disposition | None, now: float, effects: list[Effect]) -> int:
        """Settles the outstanding ones of some positions; returns how many."""
        before = self.unsettled.settled
        is_diverted = disposition is not None and disposition.kind == DIVERT
        for first, last in runs:
            for low, high in self.unsettled.settle(first, last):
                effects.append(Settle(low, high, None if is_diverted else disposition))
                if disposition is None or is_diverted:  # an entity has acknowledged it
                    self.memory.completed(low, high, now)
                else:
                    self.memory.disposed(low, high)
        count = self.unsettled.settled - before
        self.counts.settled += count
        if disposition is not None:
            self.counts.disposed[disposition.kind] += count
        return count

    def source_lost(self, is_fatal: bool, now: float) -> None:
        """The connection to the source is lost; if that is fatal, the entity may be gone, too."""
        if is_fatal:
            self.memory.forget()
            self._newest = Newest()
            return
        self.memory.lost(now, self._newest.taken_in_ms(), self.unsettled.runs())

    def give_back(self, effects: list[Effect]) -> int:
        """Releases everything outstanding; returns how many."""
        count = self.unsettled.outstanding
        self.memory.given_back()
        effects.extend(Release(first, last) for first, last in self.unsettled.clear())
        return count

    def return_unknown(self, positions: Sequence[int], effects: list[Effect]) -> None:
        """Messages came for which there is no room: releases those that the sink does not have."""
        unknown = [at for at in positions if not self.unsettled.within(at, at)]
        effects.extend(Release(unknown[low], unknown[high - 1]) for low, high in runs_of(unknown))

    def flushed(self, yielded: int, came: int) -> None:
        """A flush row reached the sink, after so many of the rows that were handed on."""
        if self._has_steps:
            self._rows.flushed(yielded, came)

    def removed_text(self, steps: Sequence[str]) -> str:
        """The error if steps removed rows, as far as that is known; empty if not."""
        removed = self._rows.removed(self.unsettled) if self._has_steps else []
        if not removed:
            return ""
        count = sum(last - first + 1 for first, last in removed)
        return (
            f"{count} messages from position {removed[0][0]} on did not come to the sink: the step '{', '.join(steps)}' removes "
            "rows; mark them instead (columns disposition and reason). They have been given back to the source"
        )

    @property
    def replaced_text(self) -> str:
        """The error if another message came under an outstanding position (I4); empty if not."""
        if not self.replaced:
            return ""
        return f"the source has given position {self.replaced} to another message: it was made again, or set back to an earlier state"

    def lag_ms(self, now: float, clock_offset_ms: int | None) -> int:
        """The age of the last message; 0 where none came recently, or the source's clock is unknown."""
        came_at, payload = self._last_came
        if not payload or clock_offset_ms is None or now - came_at >= LAG_SECONDS:
            return 0
        return age_ms(payload, int(came_at * 1000) + clock_offset_ms)
