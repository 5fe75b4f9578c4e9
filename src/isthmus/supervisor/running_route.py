"""A route that was started, as the supervisor sees it.

What it is: the interface of everything that runs a route. What it is not: its implementation (`isthmus.replication.query.shared_route`).
"""

from __future__ import annotations

from typing import Protocol

from isthmus.replication.query.route_progress import RouteProgress

__all__ = ["RunningRoute"]


class RunningRoute(Protocol):
    """A route that was started."""

    def is_active(self) -> bool:
        """Whether it still runs."""
        ...

    def failure(self) -> str:
        """Why it ended; empty while it runs, and if it ended because all was moved."""
        ...

    def progress(self) -> RouteProgress:
        """Its counts now; never blocks on a namespace."""
        ...

    def drain(self) -> None:
        """Asks it to drain; does not wait."""
        ...

    def drained(self) -> bool:
        """Whether it has no messages in flight."""
        ...

    def stop(self) -> None:
        """Ends it; blocks."""
        ...
