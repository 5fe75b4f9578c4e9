"""Which copy is the newest, and whether enough copies are there to tell.

What it is: the decision, of plain values. What it is not: the reading of copies (`member`), nor what is done with the
others (`resilver`). See docs/explanation/zones.md, "At the start".

A batch is acknowledged when two copies have it on disk, and any two copies that can be asked have one in common with
those two. So two have to be asked, and the newest of all that they know of is at least as new as what was acknowledged.

Invariants:
    I1. With fewer than two votes nothing is elected.
    I2. What is elected has everything that any vote knows of.
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
    """What one copy tells.

    Attributes:
        copy: which.
        vote: up to where it knows that history went; None if it cannot tell.
        position: what it holds; None if that is not to be relied on.
        promise: the highest epoch that has asked it.
    """

    copy: int
    vote: Position | None
    position: Position | None
    promise: int = 0


def elect(candidates: Sequence[Candidate]) -> int | None:
    """The copy to serve from; None if what there is may lack what was acknowledged."""
    votes = [each.vote for each in candidates if each.vote is not None]
    whole = [each for each in candidates if each.position is not None]
    if len(votes) < MAJORITY or not whole:
        return None
    newest = max(whole, key=lambda each: (each.position, -each.copy))
    assert newest.position is not None
    return newest.copy if newest.position >= max(votes) else None


def next_epoch(candidates: Sequence[Candidate]) -> int:
    """The epoch to ask for: above all that any copy knows of."""
    known = [each.promise for each in candidates]
    known += [each.vote.epoch for each in candidates if each.vote is not None]
    return max(known, default=0) + 1
