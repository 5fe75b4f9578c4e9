"""The reader's side of one route: flow control of its source, and the settlement of its messages.

What it is: a machine without I/O. It decides when to open the source and the target, how much credit to grant, what to hand on, what to
settle and what to release. `on(event, now)` returns effects; a run of many messages is one event. What it is not: a connection
(`port`), the sink's machine (`delivery`), or the reader's process, which carries many routes (`host.reader`).

An opening. The source is opened; then the sink is told to open the target under a new handle; credit is granted when that is ready. An
opening fails when the sink fails the target, the source can never be read, a step of the query removes rows, or the claim is not
confirmed: unsettled messages are released, both ends are closed, and another opening begins later. After a mere loss of its
connection the source is opened again within the opening: messages at the sink are settled over the next connection.

The end of a route, in order: credit is taken back; messages that still come are handed on; everything outstanding is settled; the
sink is told that the handle has ended; the source is closed. It does not wait for a target that accepts nothing, or a lost source:
the rest is released.

Invariants:
    I1. A position is settled at the source only after the sink reported it, or by the driver's plan for one that crashed workers.
    I2. Delivered and unsettled messages are released when an opening ends, for any reason.
    I3. No credit is granted before the target is ready, while it is paused, while the claim is not confirmed, or after the end began.
    I4. Nothing is handed on, and nothing is settled, for a handle after `CloseTarget`.
    I5. With a window of at most TOLD_WINDOW each message is reported to the driver before it is handed on.
    I6. A position that comes again while it is outstanding is not handed on again: the sink still has it.
    I7. Every opening has a handle of its own.
    I8. A route of what is present ends only after its source was polled once more where it got a disposition: it may refuse it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from isthmus.bridge.flow.byte_budget import ByteBudget
from isthmus.bridge.flow.rate_limit import RateLimit
from isthmus.bridge.flow.source_flow import SourceFlow
from isthmus.bridge.lease import event as e
from isthmus.bridge.lease.event import Effect, Event
from isthmus.bridge.lease.fence import Fence
from isthmus.bridge.lease.message_account import MessageAccount
from isthmus.bridge.lease.report import report_of
from isthmus.bridge.lease.state import OPEN_LIMIT_SECONDS, EndState, LeaseCounts, Phase, SourceState, Trouble
from isthmus.bridge.port import Arrived, Blocked, Drained, Exhausted, Noted, SourceLost, SourceOpened
from isthmus.bridge.report import RouteReport
from isthmus.bridge.route_spec import RouteSpec

__all__ = ["TOLD_WINDOW", "RouteLease"]

TOLD_WINDOW = 8  # I5: it may be the one that crashes workers


class RouteLease:
    """The lease machine of one route.

    Args:
        spec: how the route is carried.
        fence: of the route's claim; one that requires none is always open.
        budget: bytes of all routes of the process.
        new_handle: returns the next free handle.
        counts: the counts of an earlier time in this lease at which the route was carried.
        wall_offset_seconds: wall time minus monotonic time, for rates that change with the hour of the day.

    Attributes:
        messages: their account.
        handle: of the current opening; 0 while there is none.
    """

    def __init__(
        self,
        spec: RouteSpec,
        fence: Fence,
        budget: ByteBudget,
        new_handle: Callable[[], int],
        counts: LeaseCounts | None = None,
        wall_offset_seconds: float = 0.0,
    ) -> None:
        self.spec = spec
        self.messages = MessageAccount(counts or LeaseCounts(), bool(spec.steps))
        self.handle = 0
        self._fence = fence
        self._budget = budget
        self._counted_bytes = 0
        self._new_handle = new_handle
        self._phase = Phase.NEW
        self._flow = SourceFlow(spec.window, spec.window_bytes, budget, RateLimit(spec.rate, wall_offset_seconds))
        self._source = SourceState()
        self._trouble = Trouble()
        self._end = EndState()
        self._paused = ""
        self._handlers: dict[type, Callable[[Any, float, list[Effect]], None]] = {
            e.Begin: self._on_begin,
            SourceOpened: self._on_source_opened,
            Arrived: self._on_arrived,
            Drained: lambda event, now, effects: self._flow.drained(),
            Blocked: lambda event, now, effects: self._source.blocked(event.position),
            Noted: lambda event, now, effects: self._source.noted(event.text),
            Exhausted: self._on_exhausted,
            SourceLost: self._on_source_lost,
            e.TargetReady: self._on_target_ready,
            e.Completed: self._on_settled,
            e.Disposed: self._on_settled,
            e.TargetPaused: self._on_target_paused,
            e.TargetResumed: self._on_target_resumed,
            e.TargetFailed: self._on_failed,
            e.Fault: self._on_failed,
            e.Flushed: self._on_flushed,
            e.Statistics: self._on_statistics,
            e.Planned: self._on_planned,
            e.End: self._on_end,
            e.Abort: self._on_abort,
            e.Tick: lambda event, now, effects: self._end.polled(),
        }

    # ---- queries of the host

    @property
    def has_ended(self) -> bool:
        """Whether the route has ended; later events have no effect."""
        return self._phase is Phase.ENDED

    @property
    def outstanding(self) -> int:
        """Messages delivered and not settled."""
        return self.messages.unsettled.outstanding

    def deadline(self, now: float) -> float:
        """When a `Tick` is due even without events; infinite where none is."""
        if self._phase is Phase.ENDED:
            return math.inf
        due = self._trouble.retry_at if self._phase is Phase.WAITING and self._fence.is_open(now) else math.inf
        due = min(due, self._source.reopen_at, self._source.open_by, self._flow.drain_by, self._flow.rate_due)
        if self.handle and self._fence.required and self._fence.until > now:
            due = min(due, self._fence.until)
        if self._end.is_begun:
            due = min(due, max(self._drains_until(), self._waits_until()))
        return now if self._end.may_be_refused and self._end.is_at_end(self.outstanding) else due

    def report(self, now: float, clock_offset_ms: int | None = None) -> RouteReport:
        """The route's report; `clock_offset_ms` is from its source."""
        return report_of(
            self._phase,
            self.messages,
            self._source,
            self._trouble,
            self._end,
            window=max(self._flow.window.limit, self.outstanding),
            rate=self._flow.rate,
            paused=self._paused,
            is_confirmed=self._fence.is_open(now),
            now=now,
            clock_offset_ms=clock_offset_ms,
        )

    # ---- events

    def on(self, event: Event, now: float) -> list[Effect]:
        """Takes an event; returns the effects, in order."""
        effects: list[Effect] = []
        if self._phase is not Phase.ENDED:
            self._check_claim(event, now, effects)
            self._handlers[type(event)](event, now, effects)
            self._count_bytes()
            self._advance(now, effects)
            self._count_bytes()
        return effects

    def _count_bytes(self) -> None:
        nbytes = self.messages.unsettled.outstanding_bytes
        self._budget.used += nbytes - self._counted_bytes
        self._counted_bytes = nbytes

    def _on_begin(self, event: e.Begin, now: float, effects: list[Effect]) -> None:
        if self._phase is Phase.NEW:
            self._open(now, effects)

    def _on_source_opened(self, event: SourceOpened, now: float, effects: list[Effect]) -> None:
        if not (source := self._source).is_made:
            return
        if source.identity and event.identity and source.identity != event.identity:
            # The same address, another namespace: its positions mean other messages.
            text = f"the source is another namespace now: '{event.identity}', before '{source.identity}'"
            self._fail(text, False, now, effects)
            return
        source.opened(event.identity)
        self._flow.reset()
        self.messages.memory.opened(event.identity, now, keeps_times=event.keeps_times)
        if not source.is_told:
            source.is_told = True
            self._phase = Phase.CONNECTING
            effects += (e.OpenTarget(self.handle, event.identity), e.Window(self.handle, self._flow.window.limit))
        if self._phase is Phase.CONNECTING:
            source.open_by = now + self.spec.target_seconds + OPEN_LIMIT_SECONDS

    def _on_arrived(self, event: Arrived, now: float, effects: list[Effect]) -> None:
        positions, payloads = event
        if not payloads or not self.handle:
            return  # the source is closed: they come again
        sizes: Sequence[int] = list(map(len, payloads))
        has_room = self._flow.take(len(sizes), sum(sizes), self.messages.unsettled)
        if self._phase is not Phase.RUNNING or not has_room or not self._fence.is_open(now):
            self._end.has_returned = True
            self.messages.return_unknown(positions, effects)
            return
        self._source.backoff.reset()
        positions, payloads, sizes = self.messages.admit(positions, payloads, sizes, now, effects)
        self._end.may_be_refused |= any(type(each) is e.Settle and each.disposition is not None for each in effects)
        if text := self.messages.replaced_text:
            self._fail(text, False, now, effects)
            return
        if not positions:
            return
        self._flow.window.came(len(sizes), sum(sizes), max(sizes))
        if self._flow.window.limit <= TOLD_WINDOW:
            effects.append(e.Report())
        effects.append(e.HandOn(self.handle, positions, payloads))

    def _on_exhausted(self, event: Exhausted, now: float, effects: list[Effect]) -> None:
        self._end.is_exhausted = self.spec.only_present

    def _on_source_lost(self, event: SourceLost, now: float, effects: list[Effect]) -> None:
        if not self.handle:
            return
        self._flow.reset()
        self._end.is_exhausted &= not event.voids_end
        self.messages.source_lost(event.is_fatal, now)
        if event.is_fatal:
            self._fail(event.text, True, now, effects)
        else:
            self._source.lost_now(event.text, now)

    def _on_target_ready(self, event: e.TargetReady, now: float, effects: list[Effect]) -> None:
        if self._phase is Phase.CONNECTING:
            self._phase = Phase.RUNNING
            self._source.target_opened()
            self._trouble.text = self._paused = ""
            effects.append(e.Report())  # from now on a message may be the cause of a crash

    def _on_target_paused(self, event: e.TargetPaused, now: float, effects: list[Effect]) -> None:
        self._paused = event.text or "the target takes nothing"

    def _on_target_resumed(self, event: e.TargetResumed, now: float, effects: list[Effect]) -> None:
        self._paused = ""
        self._end.progress_at = now

    def _on_failed(self, event: e.TargetFailed | e.Fault, now: float, effects: list[Effect]) -> None:
        if self.handle:
            self._fail(event.text, event.is_fatal, now, effects)

    def _on_settled(self, event: e.Completed | e.Disposed, now: float, effects: list[Effect]) -> None:
        count = self.messages.settle(event.runs, event.disposition, now, effects)
        if not count:
            return
        self._trouble.settled(event.disposition)
        self._end.progress_at = now
        self._end.may_be_refused |= event.disposition is not None
        if self._flow.window.settled(count, self.outstanding, now):
            self._window_changed(effects)
        elif self._flow.window.limit <= TOLD_WINDOW:
            effects.append(e.Report())
        self._find_removed(now, effects)

    def _on_flushed(self, event: e.Flushed, now: float, effects: list[Effect]) -> None:
        self.messages.flushed(event.yielded, event.came)
        self._find_removed(now, effects)

    def _find_removed(self, now: float, effects: list[Effect]) -> None:
        if text := self.messages.removed_text(self.spec.step_names):
            self._fail(text, True, now, effects)

    def _on_statistics(self, event: e.Statistics, now: float, effects: list[Effect]) -> None:
        self.messages.counts.sent_again(event.resent)
        self.messages.is_awaited = event.is_awaited
        # Blocked, but not paused: the sink needs another message to find out whether the message or the target is the cause.
        if event.blocked_by and not self._paused and self._flow.admit_another(self.messages.unsettled):
            self._window_changed(effects)

    def _on_planned(self, event: e.Planned, now: float, effects: list[Effect]) -> None:
        if event.plan == self.messages.plan:
            return
        self.messages.plan = event.plan
        if event.plan.window:
            self._flow.window.narrow(event.plan.window, event.plan.span)
            self._window_changed(effects)

    def _window_changed(self, effects: list[Effect]) -> None:
        if self._source.is_told:
            effects.append(e.Window(self.handle, self._flow.window.limit))
        effects.append(e.Report())

    def _on_end(self, event: e.End, now: float, effects: list[Effect]) -> None:
        if not self._end.is_begun:
            self._end.begun_at = self._end.progress_at = now

    def _on_abort(self, event: e.Abort, now: float, effects: list[Effect]) -> None:
        self._trouble.text = event.text
        self._finish(effects)

    # ---- openings

    def _open(self, now: float, effects: list[Effect]) -> None:
        self.handle = self._new_handle()
        self._source = SourceState(is_made=True, open_by=now + OPEN_LIMIT_SECONDS)
        self._end.is_exhausted = self._end.has_returned = self._end.may_be_refused = False
        self.messages.new_opening()
        self._trouble.retry_at = math.inf
        self._paused = ""
        self._phase = Phase.OPENING
        effects.append(e.OpenSource(self.handle))

    def _close(self, effects: list[Effect]) -> int:
        """Releases unsettled messages, and closes both ends; returns how many messages were released."""
        count = self.messages.give_back(effects)
        if self._source.is_told:
            effects.append(e.CloseTarget(self.handle))
        if self._source.is_made:
            effects.append(e.CloseSource())
        self._source = SourceState()
        self._flow.reset()
        self._end.is_exhausted = False
        self.handle = 0
        return count

    def _fail(self, text: str, is_fatal: bool, now: float, effects: list[Effect]) -> None:
        """Ends this opening; the next one comes later, unless the route ends."""
        self._close(effects)
        self._paused = ""
        self._phase = Phase.WAITING
        self._trouble.failed_now(text, is_fatal, now)
        effects.append(e.Report())

    def _finish(self, effects: list[Effect]) -> int:
        note = self._source.note
        count = self._close(effects)
        self._source.note = note  # a note about unfinished work is reported also after the end
        self._phase = Phase.ENDED
        effects += (e.Report(), e.Ended())
        return count

    def _check_claim(self, event: Event, now: float, effects: list[Effect]) -> None:
        """Ends the opening with the claim; where the claim was never confirmed there is nothing to release."""
        if self.handle and self._fence.required and -math.inf < self._fence.until <= now:
            if isinstance(event, Arrived):
                self.messages.return_unknown(event.positions, effects)
            self._close(effects)
            self._phase = Phase.WAITING
            self._trouble.retry_at = now  # as soon as it is confirmed again
            effects.append(e.Report())

    # ---- timers

    def _advance(self, now: float, effects: list[Effect]) -> None:
        if self._phase is Phase.ENDED:
            return
        if self._end.is_begun:
            self._advance_end(now, effects)
        elif self._end.is_at_end(self.outstanding) and not self._end.may_be_refused and self._source.is_open:
            self._exhausted(now, effects)
        if min(self._source.open_by, self._flow.drain_by) <= now:
            what = (
                "sink reported nothing about the target" if self._phase is Phase.CONNECTING else "source did not answer"
            )
            self._fail(f"the {what} in time", False, now, effects)
        if self._phase is Phase.WAITING and now >= self._trouble.retry_at and self._fence.is_open(now):
            self._open(now, effects)
        if self._source.reopen_at <= now:
            self._source.reopen_at, self._source.open_by = math.inf, now + OPEN_LIMIT_SECONDS
            effects.append(e.OpenSource(self.handle))
        if self._phase is not Phase.RUNNING or not self._source.is_open:
            return
        if self._paused or self._end.is_begun or not self._fence.is_open(now):
            self._flow.drain(now, effects)
        else:
            self._flow.refill(self.messages.unsettled, now, effects)

    def _exhausted(self, now: float, effects: list[Effect]) -> None:
        if self._end.has_returned:
            self._fail("messages were given back meanwhile; the route begins again", False, now, effects)
        else:
            self._end.is_complete = True
            self._finish(effects)

    def _advance_end(self, now: float, effects: list[Effect]) -> None:
        source, end = self._source, self._end
        if self._phase is Phase.RUNNING and source.is_open:
            self._flow.drain(now, effects)
        if now < max(self._drains_until(), self._waits_until()):
            return
        is_due_to_target = bool(self._paused or source.lost)
        end.is_complete = end.is_at_end(self.outstanding) and not end.has_returned and not end.may_be_refused
        if (count := self._finish(effects)) and not is_due_to_target:
            self._trouble.text = f"{count} messages were not settled in time and have been given back"

    def _drains_until(self) -> float:
        """Until when the end waits for messages in transit from the source."""
        is_quiet = self._phase is not Phase.RUNNING or not self._source.is_open or self._flow.is_quiet
        return self._end.drains_until(is_quiet)

    def _waits_until(self) -> float:
        """Until when the end waits for outstanding messages, and for a source that has to receive settlements."""
        has_unsent = bool(self._source.lost) and self._source.is_told
        return self._end.waits_until(self.messages.unsettled.outstanding, has_unsent, bool(self._paused))
