"""A route into an archive, as the supervisor sees it: the route that fills the spool, and the query that empties it.

What it is: the combination of both. What it is not: either of them.

Invariants:
    I1. If one of the two has failed, the route has failed, and both are stopped before they are started again.
    I2. A run with an end ends only when the archive has all messages of the spool.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from isthmus.replication.query.route_progress import RouteProgress, SpoolView

__all__ = ["ArchiveRoute", "Emptying", "Filling"]


class Filling(Protocol):
    """The route that fills the spool (`isthmus.replication.query.shared_route`)."""

    def is_active(self) -> bool: ...

    def failure(self) -> str: ...

    def progress(self) -> RouteProgress: ...

    def drain(self) -> None: ...

    def drained(self) -> bool: ...

    def stop(self) -> None: ...


class Emptying(Protocol):
    """The query that empties the spool (`query`)."""

    def is_active(self) -> bool: ...

    def failure(self) -> str: ...

    def has_all(self) -> bool: ...

    def stop(self) -> None: ...


class ArchiveRoute:
    """A started route into an archive.

    Args:
        filling: the route that fills the spool.
        emptying: the query that empties it.
        view: the content of the spool; None: unknown.
    """

    def __init__(self, filling: Filling, emptying: Emptying, view: Callable[[], SpoolView] | None = None) -> None:
        self._view = view
        self._filling = filling
        self._emptying = emptying

    def is_active(self) -> bool:
        """Whether the route runs.

        Raises:
            SparkGoneError: Spark has ended.
        """
        if not self._emptying.is_active():
            return False
        if self._filling.is_active():
            return True
        return not self._filling.failure() and not self._emptying.has_all()

    def failure(self) -> str:
        """Why the route ended; empty if it did not fail."""
        return self._filling.failure() or self._emptying.failure()

    def progress(self) -> RouteProgress:
        """The last report of the source's reader. Messages in the spool count as moved: they are settled at the source."""
        seen = self._filling.progress()
        return replace(seen, spool=self._view()) if self._view is not None else seen

    def drain(self) -> None:
        """Receive no more messages."""
        self._filling.drain()

    def drained(self) -> bool:
        """Whether no messages are in flight between source and spool; the next run archives the messages in the spool."""
        return self._filling.drained()

    def stop(self) -> None:
        """Stop both; blocks."""
        try:
            self._filling.stop()
        finally:
            self._emptying.stop()
