"""The items between a reader's host and Spark's thread.

What it is: the items of the queue that Spark's thread reads, and the name of the lease. What it is not: Spark's rows
(`isthmus.bridge.spark.row`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from isthmus.errors import IsthmusError

__all__ = ["LeaseEnd", "LeaseFailedError", "LeaseName", "Rows"]


class LeaseName(NamedTuple):
    """The driver's key of a lease: the query, the number of the micro-batch, and the partition, of so many."""

    query: str
    lease: int
    slot: int
    slots: int = 1

    def __str__(self) -> str:
        return f"query '{self.query}', lease {self.lease}, slot {self.slot}"


class Rows(NamedTuple):
    """Messages of one opening of a route, in the order of their source."""

    handle: int
    positions: Sequence[int]
    payloads: Sequence[bytes]


class LeaseEnd(NamedTuple):
    """The lease has ended; nothing follows."""

    error: IsthmusError | None


class LeaseFailedError(IsthmusError):
    """The lease could not continue; unsettled messages have been released."""

    code = "lease"
    retryable = True

    def __init__(self, lease: str = "", what: str = "") -> None:
        super().__init__("", lease=lease, what=what)

    def text(self) -> str:
        return f"{self.attributes.get('lease')}: {self.attributes.get('what')}"
