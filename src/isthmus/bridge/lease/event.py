"""The events and effects of a route's lease machine.

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
    """The target accepts nothing."""

    text: str


class TargetResumed(NamedTuple):
    """The target accepts messages again."""


class TargetFailed(NamedTuple):
    """The sink failed the target: release unsettled messages."""

    text: str
    is_fatal: bool = False


class Fault(NamedTuple):
    """The source cannot be used, and reports no event of its own: an option is invalid, or a call raised."""

    text: str
    is_fatal: bool = False


class Flushed(NamedTuple):
    """A flush row reached the sink: how many rows were sent before it, and how many of them arrived."""

    yielded: int
    came: int


class Statistics(NamedTuple):
    """The sink's counts for this opening. `is_awaited`: its target has messages, and its time-outs apply to their outcomes."""

    resent: int
    blocked_by: str
    is_awaited: bool = False


class Planned(NamedTuple):
    """The driver's plan after workers crashed."""

    plan: Plan


class End(NamedTuple):
    """End in order."""


class Abort(NamedTuple):
    """Release everything now: the lease failed."""

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
    """Open the source of this handle: a new one, or the same again after its connection was lost."""

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
    """Release positions at the source."""

    first: int
    last: int


class OpenTarget(NamedTuple):
    """Tell the sink to open the target; `TargetReady` or `TargetFailed` answers."""

    handle: int
    origin_identity: str


class CloseTarget(NamedTuple):
    """Tell the sink that a handle has ended."""

    handle: int


class Window(NamedTuple):
    """Tell the sink how many messages may be outstanding."""

    handle: int
    messages: int


class HandOn(NamedTuple):
    """Hand messages on to Spark, after all frames that must precede them."""

    handle: int
    positions: Sequence[int]
    payloads: Sequence[bytes]


class Report(NamedTuple):
    """Report the route to the driver at once, before anything is handed on or granted."""


class Ended(NamedTuple):
    """The route has ended; nothing of it is outstanding."""


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
