"""Deletes the oldest messages of mailboxes that are nearly full, where a task says `when_full: drop`.

What it is: the pure decision how much to delete, and the thread that receives and completes that much. A mailbox has messages of one route
only, so that nothing of other routes is deleted. What it is not: the query of sizes (`isthmus.supervisor.watch.fill`).

Invariants:
    I1. Nothing is deleted below DROP_PERCENT, or while this run does not hold the task's claim; a deletion ends when the claim is lost, or when
        the mailbox has been emptied to KEPT_PERCENT by others meanwhile.
    I2. Deleted messages are counted, logged and shown once the namespace has confirmed them; unconfirmed ones are reported as unknown.
    I3. Messages that were received and not completed when this ends are released.
    I4. A size is acted on once: a namespace may report the same one for minutes.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence

from isthmus.amqp.performative import Accepted
from isthmus.replication.namespace_clients import NamespaceClients
from isthmus.supervisor.watch.fill import Fill
from isthmus.topology.model import Route
from isthmus.transport import Receiver

__all__ = ["DROP_PERCENT", "KEPT_PERCENT", "DropWatch", "excess_bytes"]

log = logging.getLogger(__name__)

DROP_PERCENT, KEPT_PERCENT = 90.0, 80.0
_INTERVAL_SECONDS = 5.0
_CREDIT = 200
_SLICE_SECONDS = 0.2
_SILENT_SECONDS = 10.0
_CONFIRM_SECONDS = 10.0


def excess_bytes(fill: Fill) -> int:
    """How many bytes of messages to delete; 0 while there is room."""
    if fill.percent < DROP_PERCENT:
        return 0
    return max(0, fill.used_bytes - int(fill.limit_bytes * KEPT_PERCENT / 100))


class DropWatch:
    """Keeps the mailboxes of a run from filling.

    Args:
        routes: of the run.
        fills: the known sizes.
        clients: opens the namespaces; called in the thread.
        may_drop: whether this run moves a route's task now.
    """

    def __init__(
        self,
        routes: Sequence[Route],
        fills: Callable[[], Sequence[Fill]],
        clients: Callable[[], NamespaceClients],
        may_drop: Callable[[Route], bool],
    ) -> None:
        self._routes = [route for route in routes if route.options.when_full == "drop" and route.options.feed]
        self._fills = fills
        self._clients = clients
        self._may_drop = may_drop
        self._dropped: Counter[str] = Counter()
        self._acted_on: dict[str, int] = {}  # by route, the size that caused the last deletion
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="drop", daemon=True) if self._routes else None

    def start(self) -> DropWatch:
        """Starts the thread."""
        if self._thread is not None:
            self._thread.start()
        return self

    def close(self) -> None:
        """Ends; blocks until a running deletion has ended."""
        self._stop.set()
        if self._thread is not None and self._thread.is_alive():
            self._thread.join(30.0)

    def dropped(self, route: str) -> int:
        """How many messages of a route's mailbox this run has deleted."""
        return self._dropped[route]

    def _watch(self) -> None:
        while not self._stop.wait(_INTERVAL_SECONDS):
            for route in self._routes:
                self._drop_if_needed(route)

    def _drop_if_needed(self, route: Route) -> None:
        fill = self._fill(route)
        if fill is None or fill.used_bytes == self._acted_on.get(route.name) or not excess_bytes(fill):
            return
        if self._may_drop(route) and self._drop(route, fill):
            self._acted_on[route.name] = fill.used_bytes

    def _fill(self, route: Route) -> Fill | None:
        key = route.source.alias, route.source.entity
        return next((each for each in self._fills() if (each.namespace, each.topic) == key), None)

    def _drop(self, route: Route, fill: Fill) -> int:
        """How many messages were deleted, or may have been."""
        before, deletion = self._dropped[route.name], _Deletion()
        try:
            with self._clients() as clients:
                self._delete(clients, route, fill, deletion)
        except Exception as error:  # noqa: BLE001 - any error: without the thread no mailbox would be emptied again
            log.warning("route %s: its mailbox cannot be emptied: %s", route.name, error)
        finally:
            count = self._dropped[route.name] - before
            log.warning(
                "route %s: mailbox %s was %.0f %% full; %d of its oldest messages were deleted%s, as when_full: drop says",
                route.name,
                route.source,
                fill.percent,
                count,
                f", and for {deletion.asked} more the outcome is unknown" if deletion.asked else "",
            )
        return count + deletion.asked

    def _is_needed(self, route: Route, fill: Fill) -> bool:
        """Whether messages still have to be deleted."""
        now = self._fill(route)
        is_emptied = now is not None and now.used_bytes != fill.used_bytes and now.percent <= KEPT_PERCENT
        return not is_emptied and self._may_drop(route)

    def _delete(self, clients: NamespaceClients, route: Route, fill: Fill, deletion: _Deletion) -> None:
        """Receive and complete messages, the oldest first, until there is room."""
        size = excess_bytes(fill)
        client = clients.open(route.source)
        try:
            receiver = Receiver(client, route.source.entity, confirms=True).wait_attached()
            last_event_at = time.monotonic()
            while size > 0 and not self._stop.is_set() and time.monotonic() - last_event_at < _SILENT_SECONDS:
                if not self._is_needed(route, fill):
                    break
                if not receiver.credit:
                    receiver.grant(_CREDIT)
                client.wait(_SLICE_SECONDS)
                self._dropped[route.name] += deletion.confirmed(receiver)
                if receiver.error is not None:
                    raise receiver.error
                for run in receiver.take():
                    last_event_at = time.monotonic()
                    count = 0
                    for payload in run.payloads:
                        if size <= 0:
                            break
                        size -= len(payload)
                        count += 1
                    if count:
                        receiver.dispose(run.first_id, (run.first_id + count - 1) & 0xFFFFFFFF)
                        deletion.asked += count
                client.flush()
            limit = time.monotonic() + _CONFIRM_SECONDS
            while deletion.asked and receiver.error is None and time.monotonic() < limit:
                self._dropped[route.name] += deletion.confirmed(receiver)
                if deletion.asked:
                    client.wait(_SLICE_SECONDS)
            self._dropped[route.name] += deletion.confirmed(receiver)
        finally:
            client.close(1.0)  # the detached link releases the rest of the last deliveries


class _Deletion:
    """The progress of one deletion.

    Attributes:
        asked: messages whose completion was requested, and not answered.
    """

    def __init__(self) -> None:
        self.asked = 0

    def confirmed(self, receiver: Receiver) -> int:
        """How many were completed, by the answers since the last call; a lock may have been lost."""
        completed = 0
        while receiver.outcomes:
            first, last, state = receiver.outcomes.popleft()
            count = ((last - first) & 0xFFFFFFFF) + 1
            self.asked -= count
            completed += count if isinstance(state, Accepted) else 0
        return completed
