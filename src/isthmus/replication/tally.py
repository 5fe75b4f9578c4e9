"""What became of a route's messages, summed over its leases.

What it is: the counts that each lease reports, and their sum over the leases of a route. What it is not: the
connection that carries the reports (`isthmus.replication.route_control`).

Invariants:
    I1. No count ever falls: what a lease reported last stays when the lease is gone.
    I2. Moved are only messages that were settled because the target has acknowledged them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

__all__ = ["NO_COUNTS", "Counts", "counts_of"]


class Counts(NamedTuple):
    """Messages by what became of them.

    Attributes:
        settled: at the source, for whatever reason.
        moved: settled because the target has acknowledged them.
        dead_lettered: set aside in the source's dead-letter queue, with a reason.
        discarded: completed at the source without being sent, e.g. because they have been at the target.
        resent: sent again, after a refusal or a lost connection.
    """

    settled: int = 0
    moved: int = 0
    dead_lettered: int = 0
    discarded: int = 0
    resent: int = 0

    def plus(self, other: Counts) -> Counts:
        """The sums."""
        return Counts(*(one + another for one, another in zip(self, other, strict=True)))


NO_COUNTS = Counts()


def counts_of(told: Mapping[str, Any]) -> Counts:
    """The counts in a lease's latest report, that of its sink included."""
    sink = told.get("sink")
    return Counts(
        settled=int(told.get("settled", 0)),
        moved=int(told.get("moved", 0)),
        dead_lettered=int(told.get("dead_lettered", 0)),
        discarded=int(told.get("discarded", 0)),
        resent=int(sink.get("resent", 0)) if isinstance(sink, Mapping) else 0,
    )
