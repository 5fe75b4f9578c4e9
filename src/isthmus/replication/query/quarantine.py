"""The search for the route whose messages kill the workers of a query with many routes.

What it is: the driver's record of deaths over all routes of a run, pure. A worker that dies loses the in-flight messages of every route of
its query, and which of them killed it is unknown. So a suspected route gets a query of its own, where only its own messages can be the
cause, and there a message is searched for and set aside (`crash_search`). What it is not: the queries
(`isthmus.replication.query.shared_run`).

How a route becomes suspected: it had messages outstanding when a query with several routes died, and the first of them was also the
first one at the query's previous death. A message that kills its workers returns to the front of its route at each start, as soon as
earlier messages are settled, so that the route is found after a few deaths; routes whose target accepts nothing meanwhile are suspected
with it, and return after their first messages have moved.

A reader that dies of a message that it has just received has not reported it: it reports once a second. So after a death every route of
the query has a smaller window, 64 and then 8, until as many messages have moved as may have been in flight. With 8, a reader reports each
message before it passes it on (`isthmus.bridge.lease.lease`). A poisoned message is delivered about seven times in total, fewer than the
ten after which its broker dead-letters it.

Invariants:
    I1. A message is set aside only for deaths of a query that carries its route alone.
    I2. A route that had nothing outstanding at a death is not suspected for it.
    I3. A route in quarantine returns to the others after it has settled messages there, if its first message is not the suspected one
        any more, and no search is active.
    I4. Two deaths of a shared query narrow the window of each of its routes to 8, independent of an earlier search of a route.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from isthmus.bridge.lease.crash_search import CrashSearch, Plan
from isthmus.bridge.report import RouteReport

__all__ = ["Quarantine"]

STEPS = (64, 8)
# Messages in flight at the start of a lease, if there was no report.
FIRST_WINDOW = 256


@dataclass(slots=True)
class _Account:
    """The record of one route.

    Attributes:
        head: its first outstanding message at the last death of the shared query; 0: none.
        suspect: the message for which it is in quarantine; 0: it is not in quarantine.
        settled_there: messages settled in quarantine.
        window: the most messages in flight while it shares a query, until `span` are settled; 0: no limit.
        span: see `window`.
    """

    search: CrashSearch = field(default_factory=CrashSearch)
    head: int = 0
    suspect: int = 0
    settled_there: int = 0
    window: int = 0
    span: int = 0

    def narrow(self, window: int) -> None:
        """A query that it shares died while up to `window` of its messages may have been in flight."""
        self.span = window
        self.window = next((step for step in STEPS if step < window), STEPS[-1])

    def moved(self, count: int) -> None:
        """Messages were settled."""
        self.search.moved(count)
        self.span = max(0, self.span - max(0, count))
        self.window = self.window if self.span else 0


class Quarantine:
    """The records of all routes of a run; kept over all starts of queries."""

    def __init__(self) -> None:
        self._accounts: dict[str, _Account] = {}

    def is_alone(self, name: str) -> bool:
        """Whether the route needs a query of its own."""
        return bool(self._account(name).suspect)

    def plan(self, name: str) -> Plan:
        """The plan for the reader of the route."""
        account = self._account(name)
        searched, shared = account.search.plan(), Plan(account.window, account.span)
        if account.suspect or searched.set_aside or not shared.window:
            return searched
        # An earlier search continues beside the deaths of the shared query; only a window of 8 makes the reader report each message (I4).
        return searched if 0 < searched.window < shared.window else shared

    def settled(self, name: str, count: int, head: int, outstanding: int, *, set_aside: int = 0) -> None:
        """Messages of a route were settled since the last call; `head` is its first outstanding one now.

        Args:
            name: name of the route.
            count: their number, including those that were set aside as planned.
            head: position of the first outstanding message.
            outstanding: number of outstanding messages.
            set_aside: number of set-aside messages: they do not show that workers move messages.
        """
        account = self._account(name)
        account.moved(count - set_aside)
        if not account.suspect:
            return
        account.settled_there += max(0, count)
        moved_past = account.settled_there > 0 and (head != account.suspect or not outstanding)
        if moved_past and account.search.plan() == Plan():
            account.suspect = account.head = account.settled_there = 0

    def set_aside(self, name: str, position: int) -> int:
        """A message was dead-lettered as planned. Returns the number of deaths that it was planned for, 0 if it was not planned."""
        account = self._account(name)
        planned = account.search.plan()
        if planned.set_aside != position:
            return 0
        account.search.set_aside(position)
        return planned.deaths

    def died(self, routes: Mapping[str, RouteReport], *, is_shared: bool = True) -> list[str]:
        """A worker of a query died.

        Args:
            routes: the routes that it carried, with the last report of each.
            is_shared: whether the query carries several routes.

        Returns:
            The routes that are put into quarantine.
        """
        if not is_shared:
            for name, report in routes.items():
                self._account(name).search.died(report.window, report.outstanding, report.head)
            return []
        found = []
        for name, report in routes.items():
            account = self._account(name)
            head = report.head if report.outstanding else 0
            window = account.window or report.window or FIRST_WINDOW
            account.narrow(window)
            if head and head == account.head and not account.suspect:
                account.suspect, account.settled_there = head, 0
                account.search.died(window, report.outstanding, head)  # names no message: more than one was in flight
                found.append(name)
            account.head = head
        return found

    def _account(self, name: str) -> _Account:
        return self._accounts.setdefault(name, _Account())
