"""What passes between a lease and its reader.

What it is: the items of the queue that the reader takes from, and the limits that it gives. What it is not: the rows that
Spark sees (`row`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from isthmus.errors import IsthmusError

__all__ = ["Block", "Finish", "LeaseEnd", "LeaseLimits"]


class Block(NamedTuple):
    """Messages in the order of arrival."""

    sequences: Any
    tokens: list[bytes]
    payloads: list[bytes]


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
