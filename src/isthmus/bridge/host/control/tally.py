"""The totals of one route over all leases and readers that ever reported it.

What it is: pure; reports in, one report out. What it is not: the readers themselves (`control.account`).

Invariants:
    I1. Totals are the sums over everything ever reported, and never fall: the last counts of a reader that ended are kept.
    I2. A count that falls within a reader, although it must not, has restarted from 0 and is added to the previous sum.
    I3. Where several readers carry a route at a time, their present values are added up. It has ended when all have ended it; the
        other values are those of a reader that retries, else of the newest that has not ended it.
    I4. A route without a reader is not shown as running: it has ended, or is retried.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from isthmus.bridge.host.control.message import COUNTS
from isthmus.bridge.report import RouteReport, RouteState

__all__ = ["DIED_TEXT", "RouteTally"]

DIED_TEXT = "the process that carried it is gone; Spark starts another one"


class RouteTally:
    """One route of a query."""

    def __init__(self) -> None:
        self._before = dict.fromkeys(COUNTS, 0)
        self._live: dict[int, RouteReport] = {}
        self._last: dict[int, tuple[int, RouteReport]] = {}  # by slot: its newest reader and its report
        self._aside: tuple[int, ...] = ()  # set aside by readers of slots that have lost the route
        self._is_over = False  # it was removed while no slot had it
        self._total: RouteReport | None = None  # until something changes

    def report(self, reader: int, slot: int, report: RouteReport, *, has_moved: bool = False) -> None:
        """Takes a report of a reader; readers are numbered in the order of their leases. `has_moved`: another slot carries the route now."""
        self._total = None
        before = self._live.get(reader, report)
        for name in COUNTS:
            if getattr(report, name) < getattr(before, name):
                self._before[name] += getattr(before, name)
        self._live[reader] = report
        if not has_moved and reader >= self._last.get(slot, (0, report))[0]:
            self._last[slot] = (reader, report)

    def take(self, reader: int, slot: int) -> None:
        """A reader is assigned the route: earlier reports of other readers no longer apply."""
        self._total = None
        self._is_over = False
        _, before = self._last.get(slot, (0, RouteReport()))
        self._last[slot] = (reader, RouteReport(set_aside=before.set_aside))

    def move(self) -> None:
        """No slot carries the route now; another one takes it next."""
        self._total = None
        aside = (position for _, report in self._last.values() for position in report.set_aside)
        self._aside = tuple(dict.fromkeys((*self._aside, *aside)))
        self._last.clear()

    def leave(self, reader: int, slot: int, error: str) -> None:
        """A reader is gone: nothing of it is outstanding any more. `error` is empty where the route is not continued."""
        self._total = None
        report = self._live.pop(reader, RouteReport())
        for name in COUNTS:
            self._before[name] += getattr(report, name)
        newest, last = self._last.get(slot, (0, report))
        if newest == reader:
            has_ended = not error or last.state is RouteState.ENDED
            self._last[slot] = (reader, _left(last, "" if has_ended else last.error or error))

    def finish(self) -> None:
        """No reader carries the route any more."""
        self._total = None
        self._is_over = not self._last
        self._last = {slot: (reader, _left(report, "")) for slot, (reader, report) in self._last.items()}

    def wait(self) -> None:
        """The route waits for a reader."""
        self._total = None
        self._is_over = False

    def total(self) -> RouteReport:
        """The report of the route over all readers."""
        if self._total is None:
            self._total = self._added_up()
        return self._total

    def _added_up(self) -> RouteReport:
        if not self._last:
            state = RouteState.ENDED if self._is_over else RouteState.OPENING
            return RouteReport(state=state, set_aside=self._aside, **self.counts())
        now = [report for _, report in self._last.values()]
        return replace(
            max(self._last.values(), key=_rank)[1],
            outstanding=sum(report.outstanding for report in now),
            is_awaited=any(report.is_awaited for report in now),
            window=sum(report.window for report in now),
            lag_ms=max(report.lag_ms for report in now),
            head=min((report.head for report in now if report.head), default=0),
            set_aside=tuple(dict.fromkeys((*self._aside, *(each for report in now for each in report.set_aside)))),
            is_exhausted=all(report.is_exhausted for report in now),
            **self.counts(),
        )

    def counts(self) -> dict[str, Any]:
        """The totals, by the names of their fields."""
        return {
            name: before + sum(getattr(report, name) for report in self._live.values())
            for name, before in self._before.items()
        }


def _rank(entry: tuple[int, RouteReport]) -> tuple[bool, bool, int]:
    reader, report = entry
    return report.state is not RouteState.ENDED, report.state is RouteState.RETRYING, reader


def _left(report: RouteReport, error: str) -> RouteReport:
    state = RouteState.RETRYING if error else RouteState.ENDED
    gone = replace(report, state=state, error=error, outstanding=0, head=0, window=0, lag_ms=0, paused="", blocked_by=0)
    return replace(gone, is_awaited=False, note="" if error else report.note)
