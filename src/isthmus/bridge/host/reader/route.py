"""One route of a reader: its lease machine, its source, and the source that it has closed.

What it is: the reader's state of each route, and its report. What it is not: deadlines, or the execution of effects (`reader.routes`).

Invariants:
    I1. A route has ended only after its source has left its system, or LEAVE_SECONDS have passed.
    I2. Credit is granted only when all earlier messages are known, because it counts from then on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from isthmus.bridge.lease.crash_search import Plan
from isthmus.bridge.lease.lease import RouteLease
from isthmus.bridge.port import Arrived, Source, SourceEvent
from isthmus.bridge.report import RouteReport, RouteState
from isthmus.bridge.route_spec import RouteSpec

__all__ = ["LEAVE_SECONDS", "CarriedRoute"]

# How often, and how long at most, a closed source is polled: for less than the time that a query gives a route to end.
_POLL_SECONDS = 0.01
LEAVE_SECONDS = 10.0


@dataclass(slots=True, eq=False)
class CarriedRoute:
    """A route that a reader carries.

    Attributes:
        spec: its description.
        lease: decides.
        source: None while it is closed.
        key: the handle that the source was made for.
        clock_sent_ms: the source's clock as last sent to the sink.
        is_ending: whether it was asked to end.
        next_spec: the route to carry under this name once this one has ended.
        opens: the handle to open once the source that was closed has left; 0: none.
    """

    spec: RouteSpec
    lease: RouteLease
    source: Source | None = None
    key: int = 0
    clock_sent_ms: int | None = None
    is_ending: bool = False
    next_spec: tuple[RouteSpec, Plan] | None = None
    opens: int = 0
    _leaving: Source | None = None
    _leave_by: float = math.inf

    @property
    def has_ended(self) -> bool:
        """Whether it has ended."""
        return self.lease.has_ended and self._leaving is None

    @property
    def is_leaving(self) -> bool:
        """Whether the closed source has not left its system yet."""
        return self._leaving is not None

    @property
    def clock_ms(self) -> int | None:
        """The wall time of the source's system minus monotonic time."""
        return self.source.clock_offset_ms if self.source is not None else None

    def poll(self, now: float) -> Sequence[SourceEvent]:
        """The source's events; consecutive arrivals are joined (I2), except where a message comes twice: the lease knows it only
        once it has taken the first.
        """
        events = self.source.poll(now) if self.source is not None else ()
        if len(events) < 2:
            return events
        joined: list[SourceEvent] = []
        seen: set[int] = set()
        for event in events:
            last = joined[-1] if joined else None
            is_new = isinstance(event, Arrived) and seen.isdisjoint(event.positions)
            seen.update(event.positions if isinstance(event, Arrived) else ())
            if is_new and isinstance(event, Arrived) and isinstance(last, Arrived):
                joined[-1] = Arrived([*last.positions, *event.positions], [*last.payloads, *event.payloads])
            else:
                joined.append(event)
        return joined

    def report(self, now: float) -> RouteReport:
        """Its report."""
        report = self.lease.report(now, self.clock_ms)
        is_leaving = report.state is RouteState.ENDED and not self.has_ended
        return replace(report, state=RouteState.ENDING) if is_leaving else report

    def close_source(self) -> None:
        """Closes the source; its settlements may still be in transit."""
        source, self.source = self.source, None
        if source is not None:
            source.close()
            self._leaving = source

    def check_left(self, now: float) -> bool:
        """Checks whether the closed source has left; returns whether the route has ended thereby."""
        if self._leaving is None:
            return False
        self._leave_by = min(self._leave_by, now + LEAVE_SECONDS)
        if not self._leaving.has_left and now < self._leave_by:
            return False
        self._leaving, self._leave_by = None, math.inf
        return self.lease.has_ended

    def leaving_deadline(self, now: float) -> float:
        """When to check again."""
        return now + _POLL_SECONDS if self._leaving is not None else math.inf
