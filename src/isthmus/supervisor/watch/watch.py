"""Measures the backlog of the routes.

What it is: a thread for each namespace that peeks the heads of its routes' sources, so that lag and age are known
whether a route runs, fails or may not start; it queries their bindings, too (`isthmus.supervisor.watch.binding`). What it is not: a lock, or
a count; AMQP has none, so that sequence numbers are subtracted.

Invariants:
    I1. Queries of an idle source back off up to IDLE_SECONDS (each query at Azure is billed); while messages wait they follow
        every BUSY_SECONDS.
    I2. A namespace that cannot be reached does not delay the queries of others.
    I3. After any error in a query, others follow; a value older than `STALE_SECONDS` counts as unknown, never as the present one.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence

from isthmus.clock import Clock, SystemClock
from isthmus.connectors.servicebus.head import first_waiting, last_sequence, waiting_at_most
from isthmus.errors import IsthmusError
from isthmus.replication.namespace_clients import NamespaceClients
from isthmus.replication.query.route_progress import Backlog
from isthmus.replication.verification.audit.audit import Peek
from isthmus.supervisor.watch.binding import BindingWatch
from isthmus.topology.model import Route

__all__ = ["BacklogMeter", "BacklogWatch"]

BUSY_SECONDS = 2.0
IDLE_SECONDS = 30.0
UNREACHABLE_SECONDS = 10.0
STALE_SECONDS = 3 * IDLE_SECONDS

log = logging.getLogger(__name__)


class BacklogMeter:
    """Measures one source.

    Args:
        clock: wall time, for messages that have expired.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._tail = 0
        self._interval_seconds = BUSY_SECONDS

    def __call__(self, peek: Peek) -> Backlog:
        """Measure once.

        Raises:
            IsthmusError: the source cannot be read.
        """
        head = first_waiting(peek, self._clock.wall_ms())
        if head is None:
            self._interval_seconds = min(IDLE_SECONDS, self._interval_seconds * 2)
            return Backlog()
        self._interval_seconds = BUSY_SECONDS
        self._tail = last_sequence(peek, max(self._tail, head.sequence))
        return Backlog(max(1, waiting_at_most(peek, head.sequence, self._tail)), head.enqueued_ms)

    def measure(self, clients: NamespaceClients, route: Route) -> Backlog | None:
        """Measure the source of a route once, of any kind; None if its system reports no backlog.

        Raises:
            IsthmusError: the source cannot be read.
        """
        group, plain = route.options.log.group, route.options.plain
        if not group and not plain.reads:
            return self(clients.peek(route.source))
        found = clients.waiting(route.source, group or plain.subscription)
        is_busy = found is not None and found.messages > 0
        self._interval_seconds = BUSY_SECONDS if is_busy else min(IDLE_SECONDS, self._interval_seconds * 2)
        return None if found is None else Backlog(found.messages, found.oldest_ms, found.are_ready)

    @property
    def interval_seconds(self) -> float:
        """Seconds until the next measurement."""
        return self._interval_seconds


class BacklogWatch:
    """Measures all sources, in the background.

    Args:
        routes: whose sources to measure.
        clients: opens the namespaces; called once in each thread, since connections belong to one.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        routes: Sequence[Route],
        clients: Callable[[], NamespaceClients],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._found: dict[str, tuple[float, Backlog]] = {}
        self._clock = clock
        self._clients = clients
        self._stop = threading.Event()
        by_alias: dict[str, list[Route]] = {}
        for route in routes:
            by_alias.setdefault(route.source.alias, []).append(route)
        self._threads = [
            threading.Thread(target=self._watch, args=(each,), name=f"look-{alias}", daemon=True)
            for alias, each in by_alias.items()
        ]

    def start(self) -> BacklogWatch:
        """Starts the threads."""
        for thread in self._threads:
            thread.start()
        return self

    def close(self) -> None:
        """Stop; blocks until a pending request has ended."""
        self._stop.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(15.0)

    def backlog(self, route: Route) -> Backlog | None:
        """The backlog of a route by the last measurement; None if none has succeeded recently."""
        seen_at, backlog = self._found.get(route.name, (-math.inf, None))
        return backlog if self._clock() - seen_at < STALE_SECONDS else None

    def _watch(self, routes: Sequence[Route]) -> None:
        meters = {route.name: BacklogMeter() for route in routes}
        due = dict.fromkeys(meters, 0.0)
        reported: set[str] = set()
        bindings = BindingWatch(routes)
        with self._clients() as clients:
            while not self._stop.is_set():
                for route in routes:
                    if time.monotonic() < due[route.name]:
                        continue
                    due[route.name] = time.monotonic() + self._measure(meters[route.name], clients, route, reported)
                bindings.query(clients, time.monotonic())
                self._stop.wait(max(0.1, min(bindings.due, *due.values()) - time.monotonic()))

    def _measure(self, meter: BacklogMeter, clients: NamespaceClients, route: Route, reported: set[str]) -> float:
        """Measure once; returns after how many seconds to measure again."""
        try:
            found = meter.measure(clients, route)
        except (IsthmusError, OSError):
            return UNREACHABLE_SECONDS
        except Exception as error:  # noqa: BLE001 - I3: a thread that ends would leave its last value as valid
            if route.name not in reported:
                reported.add(route.name)
                log.warning("route %s: its backlog cannot be measured: %s: %s", route.name, type(error).__name__, error)
            return UNREACHABLE_SECONDS
        if found is not None:
            self._found[route.name] = self._clock(), found
        return meter.interval_seconds
