"""What passes between a lease and its reader.

What it is: the items of the queue that the reader takes from, and the limits that it gives. What it is not: the rows that
Spark sees (`row`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from isthmus.connectors.servicebus.block import Block
from isthmus.errors import IsthmusError

__all__ = ["Block", "Finish", "LeaseEnd", "LeaseLimits"]


class Finish(NamedTuple):
    """The lease ends: push everything through, then wait for LeaseEnd."""


class LeaseEnd(NamedTuple):
    """The accounts are closed."""

    error: IsthmusError | None


@dataclass(frozen=True, slots=True)
class LeaseLimits:
    """When a lease ends by itself; `through` is the last sequence number wanted, 0 for no such limit."""

    seconds: float
    rows: int
    nbytes: int
    idle_seconds: float
    through: int = 0
