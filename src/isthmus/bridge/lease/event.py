"""What the lease machine of a route is told, and what it asks for.

What it is: the events and effects of `lease`, values only; the events of a source are those of its port. What it is not: frames
(`frame`) or a port; the reader's host turns frames into events and carries effects out.

Invariants:
    I1. Effects are carried out in the order in which they come.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from isthmus.bridge.delivery_event import Disposition
from isthmus.bridge.lease.crash_search import Plan
from isthmus.bridge.port import SourceEvent

__all__ = [
    "Abort",
    "Begin",
    "CloseSource",
    "CloseTarget",
    "Completed",
    "Disposed",
    "Drain",
    "Effect",
    "End",
    "Ended",
    "Event",
    "Fault",
    "Flushed",
    "Grant",
    "HandOn",
    "OpenSource",
    "OpenTarget",
    "Planned",
    "Release",
    "Report",
    "Settle",
    "Statistics",
    "TargetFailed",
    "TargetPaused",
    "TargetReady",
    "TargetResumed",
    "Tick",
    "Window",
]

# ---- events


class Begin(NamedTuple):
    """Carry the route from now on."""


class TargetReady(NamedTuple):
    """The sink has opened the target: rows may come."""


class Completed(NamedTuple):
    """The target has acknowledged runs of positions: (first, last)."""

    runs: Sequence[tuple[int, int]]

    @property
    def disposition(self) -> None:
        """None: they are completed."""


class Disposed(NamedTuple):
    """The positions from `first` to `last` get another disposition at their source."""

    first: int
    last: int
    disposition: Disposition

    @property
    def runs(self) -> Sequence[tuple[int, int]]:
        """The positions, as `Completed` has them."""
        return [(self.first, self.last)]


class TargetPaused(NamedTuple):
    """The target takes nothing."""

    text: str


class TargetResumed(NamedTuple):
    """The target takes messages again."""


class TargetFailed(NamedTuple):
    """The sink gave the target up: give back what is not settled."""

    text: str
    is_fatal: bool = False


class Fault(NamedTuple):
    """The source cannot be used, and does not say so itself: an option is wrong, or a call raised."""

    text: str
    is_fatal: bool = False


class Flushed(NamedTuple):
    """A flush row came to the sink: how many rows went before it, and how many of them came."""

    yielded: int
    came: int


class Statistics(NamedTuple):
    """What the sink counts for this opening."""

    resent: int
    blocked_by: str


class Planned(NamedTuple):
    """What the driver plans because workers died."""

    plan: Plan


class End(NamedTuple):
    """End in good order."""


class Abort(NamedTuple):
    """Give everything back now: the lease failed."""

    text: str


class Tick(NamedTuple):
    """Time has passed, or the fence has moved."""


Event = (
    Begin
    | SourceEvent
    | TargetReady
    | Completed
    | Disposed
    | TargetPaused
    | TargetResumed
    | TargetFailed
    | Fault
    | Flushed
    | Statistics
    | Planned
    | End
    | Abort
    | Tick
)

# ---- effects


class OpenSource(NamedTuple):
    """Open the source of this handle: a new one, or the same again after it was lost."""

    handle: int


class CloseSource(NamedTuple):
    """Close the source."""


class Grant(NamedTuple):
    """Set the credit of the source."""

    credit: int


class Drain(NamedTuple):
    """Take the credit of the source back; `Drained` answers."""


class Settle(NamedTuple):
    """Settle positions at the source; None completes them."""

    first: int
    last: int
    disposition: Disposition | None = None


class Release(NamedTuple):
    """Give positions back to the source."""

    first: int
    last: int


class OpenTarget(NamedTuple):
    """Tell the sink to open the target; `TargetReady` or `TargetFailed` answers."""

    handle: int
    origin_identity: str


class CloseTarget(NamedTuple):
    """Tell the sink that a handle is over."""

    handle: int


class Window(NamedTuple):
    """Tell the sink how many messages may be outstanding."""

    handle: int
    messages: int


class HandOn(NamedTuple):
    """Hand messages on to Spark, after everything that was to be told before."""

    handle: int
    positions: Sequence[int]
    payloads: Sequence[bytes]


class Report(NamedTuple):
    """Tell the driver how the route is doing at once, before anything is handed on or granted."""


class Ended(NamedTuple):
    """The route is over; nothing of it is outstanding."""


Effect = (
    OpenSource
    | CloseSource
    | Grant
    | Drain
    | Settle
    | Release
    | OpenTarget
    | CloseTarget
    | Window
    | HandOn
    | Report
    | Ended
)
