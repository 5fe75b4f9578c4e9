"""The newest copy, and whether enough copies can be read to know it.

What it is: the decision, from plain values. What it is not: the reading of copies (`member`), or the repair of the
others (`resilver`). See docs/explanation/zones.md, "At the start".

A batch is acknowledged when two copies have it on disk, and any two readable copies include one of
those two. So two have to be read, and the newest position known to them is at least as new as every acknowledged one.

Invariants:
    I1. With fewer than two votes nothing is elected.
    I2. The elected copy has everything that any vote knows of.
    I3. An epoch is used only after two copies have promised it, and none promises one twice: no two processes write with
        the same epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from isthmus.store.zone.change import Position
from isthmus.store.zone.status import MAJORITY

__all__ = ["Candidate", "elect", "next_epoch"]


class Candidate(NamedTuple):
    """The answers of one copy.

    Attributes:
        copy: its index.
        vote: the position up to which it knows the history; None if that is unknown.
        position: of its contents; None if these cannot be relied on.
        promise: the highest epoch that it has promised.
    """

    copy: int
    vote: Position | None
    position: Position | None
    promise: int = 0


def elect(candidates: Sequence[Candidate]) -> int | None:
    """The copy to serve from; None if the readable ones may lack acknowledged batches."""
    votes = [each.vote for each in candidates if each.vote is not None]
    whole = [each for each in candidates if each.position is not None]
    if len(votes) < MAJORITY or not whole:
        return None
    newest = max(whole, key=lambda each: (each.position, -each.copy))
    assert newest.position is not None
    return newest.copy if newest.position >= max(votes) else None


def next_epoch(candidates: Sequence[Candidate]) -> int:
    """The epoch to request: above all that any copy knows of."""
    known = [each.promise for each in candidates]
    known += [each.vote.epoch for each in candidates if each.vote is not None]
    return max(known, default=0) + 1
