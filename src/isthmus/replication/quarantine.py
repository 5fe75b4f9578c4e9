"""Which route's messages kill the workers of a query that carries many routes.

What it is: the driver's account of deaths over all routes of a run, pure. A worker that dies takes with it what every route of its
query had under way, and which of those messages killed it is not known. So a route under suspicion gets a query of its own, where
only its own messages can be at fault, and there a message is searched for and set aside (`crash_search`). What it is not: the
queries (`isthmus.replication.shared_run`).

How a route comes under suspicion: it had messages outstanding when a query that carries several routes died, and the first of
them was the first one at that query's death before, too. What kills its workers comes back first in its route at each start,
as soon as what stood before it is settled, so that the route at fault is found after a few deaths; routes whose target takes
nothing meanwhile are suspected with it, and come back after their first messages have moved.

Invariants:
    I1. A message is set aside only for deaths of a query that carries its route alone.
    I2. A route that had nothing outstanding at a death is not suspected for it.
    I3. A route in quarantine returns to the others once it has settled messages there, its first one is not the suspected one
        any more, and no search is going on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from isthmus.bridge.crash_search import CrashSearch, Plan
from isthmus.bridge.report import RouteReport

__all__ = ["Quarantine"]


@dataclass(slots=True)
class _Account:
    """What is known of one route.

    Attributes:
        head: its first outstanding message at the last death of the shared query; 0: none.
        suspect: the message for which it is in quarantine; 0: it is not.
        settled_there: messages settled since it was put there.
    """

    search: CrashSearch = field(default_factory=CrashSearch)
    head: int = 0
    suspect: int = 0
    settled_there: int = 0


class Quarantine:
    """The account of all routes of a run; lives over all starts of queries."""

    def __init__(self) -> None:
        self._accounts: dict[str, _Account] = {}

    def is_alone(self, name: str) -> bool:
        """Whether the route belongs into a query of its own."""
        return bool(self._account(name).suspect)

    def plan(self, name: str) -> Plan:
        """What the reader of the route is told."""
        return self._account(name).search.plan()

    def settled(self, name: str, count: int, head: int, outstanding: int) -> None:
        """Messages of a route were settled since the last call; its first one outstanding now is `head`."""
        account = self._account(name)
        account.search.moved(count)
        if not account.suspect:
            return
        account.settled_there += max(0, count)
        moved_past = account.settled_there > 0 and (head != account.suspect or not outstanding)
        if moved_past and account.search.plan() == Plan():
            account.suspect = account.head = account.settled_there = 0

    def set_aside(self, name: str, position: int) -> int:
        """A message was dead-lettered as planned; how many deaths it was planned for, 0 where it was not."""
        account = self._account(name)
        planned = account.search.plan()
        if planned.set_aside != position:
            return 0
        account.search.set_aside(position)
        return planned.deaths

    def died(self, routes: Mapping[str, RouteReport]) -> list[str]:
        """A worker of a query died.

        Args:
            routes: the routes that the query carried, with what each reported last.

        Returns:
            The routes that are put into quarantine for it.
        """
        if len(routes) == 1:
            ((name, report),) = routes.items()
            self._account(name).search.died(report.window, report.outstanding, report.head)
            return []
        found = []
        for name, report in routes.items():
            account = self._account(name)
            head = report.head if report.outstanding else 0
            if head and head == account.head and not account.suspect:
                account.suspect, account.settled_there = head, 0
                found.append(name)
            account.head = head
        return found

    def _account(self, name: str) -> _Account:
        return self._accounts.setdefault(name, _Account())
