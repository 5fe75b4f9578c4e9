"""Where a reader begins in a partition, and what it has lost by then.

What it is: the decision, pure: the checkpoint, what this reader has delivered already, and what the partition says. What it is not: the
link. docs/how-to/use-eventhubs.md, "What is lost".

Invariants:
    I1. A reader that has delivered something goes on behind it, whatever the checkpoint says.
    I2. Events that the retention removed before they were done with are told, with their range.
    I3. A partition that was made again is read from its beginning: its sequence numbers name other events. That it was is told by a
        checkpoint behind its last event, and by the time at which the event hub was made.
    I4. Where reading begins is kept before the first event is read: a later reader begins there, whatever `start` says.
    I5. A partition that was added since a reader of all of them began is read from its first event, also where it was added while nobody read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from isthmus.connectors.checkpoint.checkpoint import Checkpoint
from isthmus.connectors.eventhubs.partition.address import START_OFFSET, Begin
from isthmus.connectors.eventhubs.partition.look import PartitionView

__all__ = ["Opening", "added", "opening", "remade", "told_apart"]


class Opening(NamedTuple):
    """How a partition is opened.

    Attributes:
        begin: where its link begins.
        checkpoint: what to write before, so that the place is kept though nothing is read; None: nothing.
        lost: first and last sequence number of what was removed unread; None: nothing was.
        begins_again: whether its sequence numbers name other events than before.
    """

    begin: Begin
    checkpoint: Checkpoint | None = None
    lost: tuple[int, int] | None = None
    begins_again: bool = False


def added(partitions: Iterable[int], kept: Collection[int]) -> list[int]:
    """The partitions that were added since (I5): a new one has the highest number. Of the first ones, the highest is kept first, and of new
    ones the lowest: a kill in between leaves no doubt which of them a partition is that has no checkpoint.

    Args:
        partitions: all that there are.
        kept: those of which the group has a checkpoint.
    """
    return [number for number in partitions if kept and number > max(kept)]


def told_apart(created_ms: int, views: Iterable[PartitionView]) -> int:
    """When an event hub was made, where that tells it from another one of its name; else 0: offsets that are no numbers are those of a
    namespace with geo-replication, which may tell another time in each region.
    """
    return created_ms if all(view.last_offset.removeprefix("-").isdecimal() for view in views) else 0


def remade(partitions: Iterable[int], created_ms: int, known_ms: int, kept: Mapping[int, Checkpoint]) -> set[int]:
    """The partitions of which what is known is of another event hub, which is gone (I3).

    Args:
        partitions: all that there are.
        created_ms: when their event hub was made; 0: it is not told.
        known_ms: when the one was made that this reader has read; 0: it has read none, and what it knows is kept.
        kept: the checkpoints.
    """
    if not created_ms:
        return set()
    known = {number: known_ms or (kept[number].created_ms if number in kept else 0) for number in partitions}
    return {number for number, made_ms in known.items() if made_ms not in (0, created_ms)}


def opening(
    view: PartitionView, checkpoint: Checkpoint | None, delivered_next: int, start: str, *, is_added: bool = False
) -> Opening:
    """How to open a partition.

    Args:
        view: what the partition says.
        checkpoint: the one that is stored; None: there is none.
        delivered_next: behind what this reader has delivered, or the first that was given back; -1: it has delivered nothing.
        start: `earliest` or `latest`, where nothing says more.
        is_added: whether it was added since the group began.
    """
    if delivered_next >= 0:
        return _from(view, Begin(delivered_next))
    if checkpoint is not None:
        if checkpoint.sequence < 0 and checkpoint.offset != START_OFFSET:
            return Opening(Begin(-1, checkpoint.offset))  # of an SDK that tells no sequence number
        return _from(view, Begin(checkpoint.sequence + 1, checkpoint.offset))
    if start == "latest":
        # Until the first event is done with, a later reader would begin behind what comes meanwhile (I4).
        if view.last < 0 or is_added:
            return Opening(Begin(), checkpoint=Checkpoint(-1, START_OFFSET))
        kept = Checkpoint(view.last, view.last_offset)
        return Opening(Begin(view.last + 1, view.last_offset), checkpoint=kept)
    return Opening(Begin())


def _from(view: PartitionView, begin: Begin) -> Opening:
    wanted = begin.sequence
    if wanted > view.last + 1 and wanted > 1:
        return Opening(Begin(), begins_again=True)
    if view.is_empty:
        is_lost = wanted <= view.last
        return Opening(Begin(view.last + 1) if is_lost else begin, lost=(wanted, view.last) if is_lost else None)
    if wanted < view.begin:
        return Opening(Begin(view.begin), lost=(wanted, view.begin - 1))
    return Opening(begin)
