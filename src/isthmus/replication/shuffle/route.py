"""A route that reads through spools, as the supervisor sees it.

What it is: the route into the incoming spool, the query, and the route out of the outgoing spool, combined. What it is not: any of them.

Invariants:
    I1. If one of them has failed, the route has failed, and all are stopped before they are started again.
    I2. A run with an end ends only when the target has the query's results for all messages of the incoming spool.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from isthmus.replication.archive.route import Filling
from isthmus.replication.query.route_progress import RouteProgress, SpoolView
from isthmus.replication.query.tally import Counts

__all__ = ["Gathering", "SpooledRoute"]


class Gathering(Protocol):
    """The query between the spools (`query`)."""

    def is_active(self) -> bool: ...

    def failure(self) -> str: ...

    def has_all(self) -> bool: ...

    def stop(self) -> None: ...


class SpooledRoute:
    """A started route.

    Args:
        filling: the route into the incoming spool.
        sending: the route out of the outgoing spool.
        gathering: the query between them; None: there is one spool, and no query.
        is_sent: whether the target has all messages of the outgoing spool.
        view: the content of the spools, and its outcomes.
    """

    def __init__(
        self,
        filling: Filling,
        sending: Filling,
        gathering: Gathering | None,
        is_sent: Callable[[], bool],
        view: Callable[[], SpoolView],
    ) -> None:
        self._filling = filling
        self._sending = sending
        self._gathering = gathering
        self._is_sent = is_sent
        self._view = view
        self._suppressed = view().suppressed

    def is_active(self) -> bool:
        """Whether the route runs.

        Raises:
            SparkGoneError: Spark has ended.
        """
        if not self._sending.is_active() or (self._gathering is not None and not self._gathering.is_active()):
            return False
        if self._filling.is_active():
            return True
        if self._filling.failure():
            return False
        return not ((self._gathering is None or self._gathering.has_all()) and self._is_sent())

    def failure(self) -> str:
        """Why the route ended; empty if it did not fail."""
        gathering = self._gathering.failure() if self._gathering is not None else ""
        return self._filling.failure() or gathering or self._sending.failure()

    def progress(self) -> RouteProgress:
        """The last reports of both routes. Moved messages are at the target; settled ones at least in the spool."""
        came, went, view = self._filling.progress(), self._sending.progress(), self._view()
        counts = Counts(
            settled=came.counts.settled,
            moved=went.counts.moved,
            dead_lettered=came.counts.dead_lettered + went.counts.dead_lettered,
            diverted=came.counts.diverted + went.counts.diverted,
            discarded=came.counts.discarded + went.counts.discarded + view.suppressed - self._suppressed,
            resent=came.counts.resent + went.counts.resent,
        )
        first = came if came.error else went
        return RouteProgress(
            # The route out of a spool starts when the spool has messages.
            ready=came.ready,
            counts=counts,
            paused_reason=came.paused_reason or went.paused_reason,
            is_awaited=came.is_awaited or went.is_awaited,
            note=came.note or went.note,
            processes=tuple(sorted({*came.processes, *went.processes})),
            error=came.error or went.error,
            retry_in_seconds=first.retry_in_seconds,
            limit=came.limit,
            limit_per_second=came.limit_per_second,
            spool=view,
        )

    def drain(self) -> None:
        """Receive and send no more messages: the next run sends the messages in the spools."""
        self._filling.drain()
        self._sending.drain()

    def drained(self) -> bool:
        """Whether no messages are in flight between source and spool, and between spool and target."""
        return self._filling.drained() and self._sending.drained()

    def stop(self) -> None:
        """Stop all; blocks."""
        try:
            self._filling.stop()
        finally:
            try:
                if self._gathering is not None:
                    self._gathering.stop()
            finally:
                self._sending.stop()
