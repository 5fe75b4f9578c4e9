"""The outcomes of a route's messages, summed over its leases.

What it is: the counts for operators. What it is not: the reports of leases from which they are computed
(`isthmus.bridge.host.control.tally`).

Invariants:
    I1. `moved` counts only messages that were settled because the target has acknowledged them.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["NO_COUNTS", "Counts"]


class Counts(NamedTuple):
    """Messages by outcome.

    Attributes:
        settled: settled at the source, for any reason.
        moved: settled because the target has acknowledged them.
        dead_lettered: set aside in the source's dead-letter queue, with a reason.
        discarded: completed at the source without being sent, e.g. because they have been at the target before.
        diverted: settled because the entity that a step diverted them to has acknowledged them.
        resent: sent again, after a refusal or a lost connection.
    """

    settled: int = 0
    moved: int = 0
    dead_lettered: int = 0
    discarded: int = 0
    diverted: int = 0
    resent: int = 0

    def plus(self, other: Counts) -> Counts:
        """The sums."""
        return Counts(*(one + another for one, another in zip(self, other, strict=True)))


NO_COUNTS = Counts()
