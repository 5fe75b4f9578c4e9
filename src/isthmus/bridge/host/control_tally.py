"""The totals of one route over all leases and readers that ever reported it.

What it is: pure; reports in, one report out. What it is not: who the readers are (`control_account`).

Invariants:
    I1. Totals are the sums over everything ever reported, and never fall: a reader that leaves leaves its last counts.
    I2. A count that falls within a reader, against its promise, has begun again from 0 and adds to what was.
    I3. Where several readers carry a route at a time, what they have now is added up, and the rest is that of the newest.
    I4. A route whose reader died is not shown as running.
"""

from __future__ import annotations

from dataclasses import replace

from isthmus.bridge.host.control_message import COUNTS
from isthmus.bridge.report import RouteReport, RouteState

__all__ = ["DIED_TEXT", "RouteTally"]

DIED_TEXT = "the process that carried it is gone; Spark starts another one"


class RouteTally:
    """One route of a query."""

    def __init__(self) -> None:
        self._before = dict.fromkeys(COUNTS, 0)
        self._live: dict[int, RouteReport] = {}
        self._last: dict[int, tuple[int, RouteReport]] = {}  # by slot: its newest reader and what that reported

    def report(self, reader: int, slot: int, report: RouteReport) -> None:
        """A reader reports; readers are numbered in the order of their leases."""
        before = self._live.get(reader, report)
        for name in COUNTS:
            if getattr(report, name) < getattr(before, name):
                self._before[name] += getattr(before, name)
        self._live[reader] = report
        if reader >= self._last.get(slot, (0, report))[0]:
            self._last[slot] = (reader, report)

    def leave(self, reader: int, slot: int, *, died: bool) -> None:
        """A reader is gone: nothing of it is outstanding any more."""
        report = self._live.pop(reader, None)
        if report is None:
            return
        for name in COUNTS:
            self._before[name] += getattr(report, name)
        if self._last[slot][0] == reader:
            left = replace(report, outstanding=0, head=0, window=0, lag_ms=0)
            if died and report.state is not RouteState.ENDED:
                left = replace(left, state=RouteState.RETRYING, error=report.error or DIED_TEXT)
            self._last[slot] = (reader, left)

    def total(self) -> RouteReport:
        """What the route has come to."""
        if not self._last:
            return RouteReport()
        _, newest = max(self._last.values(), key=lambda each: each[0])
        now = [report for _, report in self._last.values()]
        counts = {
            name: before + sum(getattr(report, name) for report in self._live.values())
            for name, before in self._before.items()
        }
        return replace(
            newest,
            outstanding=sum(report.outstanding for report in now),
            window=sum(report.window for report in now),
            lag_ms=max(report.lag_ms for report in now),
            head=min((report.head for report in now if report.head), default=0),
            set_aside=tuple(dict.fromkeys(position for report in now for position in report.set_aside)),
            is_exhausted=all(report.is_exhausted for report in now),
            **counts,
        )
