"""The start of a reader in a partition, and the events lost by then.

What it is: the decision, pure: from the checkpoint, this reader's deliveries, and the partition's description. What it is not: the
link. docs/how-to/use-eventhubs.md, "What is lost".

Invariants:
    I1. A reader continues after its last delivery, whatever the checkpoint.
    I2. Events that the retention removed before they were settled are reported, with their range.
    I3. A partition that was created again is read from its beginning: its sequence numbers name other events. That is detected by a
        checkpoint after its last event, and by the time at which the event hub was created.
    I4. The start is stored before the first event is read: a later reader begins there, whatever `start` says.
    I5. A partition that was added since a reader of all of them began is read from its first event, also if it was added while no reader ran.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from isthmus.connectors.checkpoint.checkpoint import Checkpoint
from isthmus.connectors.eventhubs.partition.address import START_OFFSET, Begin
from isthmus.connectors.eventhubs.partition.hub_query import PartitionView

__all__ = ["Opening", "added", "opening", "reached", "remade", "distinct_created_ms"]


class Opening(NamedTuple):
    """How a partition is opened.

    Attributes:
        begin: the start of its link.
        checkpoint: the checkpoint to write before, so that the position is stored even if nothing is read; None: none.
        lost: first and last sequence number of events removed unread; None: none.
        begins_again: whether its sequence numbers name other events than before.
    """

    begin: Begin
    checkpoint: Checkpoint | None = None
    lost: tuple[int, int] | None = None
    begins_again: bool = False


def added(partitions: Iterable[int], kept: Collection[int]) -> list[int]:
    """The partitions that were added since (I5): a new one has the highest number. Of the first ones the highest is stored first, and of new
    ones the lowest: after a kill in between it is certain to which of them a partition without checkpoint belongs.

    Args:
        partitions: all existing partitions.
        kept: those with a checkpoint of the group.
    """
    return [number for number in partitions if kept and number > max(kept)]


def distinct_created_ms(created_ms: int, views: Iterable[PartitionView]) -> int:
    """When an event hub was created, if that distinguishes it from another one of its name; otherwise 0: non-numeric offsets are those of a
    namespace with geo-replication, which may report another time in each region.
    """
    return created_ms if all(view.last_offset.removeprefix("-").isdecimal() for view in views) else 0


def remade(partitions: Iterable[int], created_ms: int, known_ms: int, kept: Mapping[int, Checkpoint]) -> set[int]:
    """The partitions whose known state is of another event hub, which was deleted (I3).

    Args:
        partitions: all existing partitions.
        created_ms: when their event hub was created; 0: unknown.
        known_ms: when the event hub was created that this reader has read; 0: it has read none, and its state is kept.
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
        view: the partition's description.
        checkpoint: the stored one; None: there is none.
        delivered_next: after this reader's last delivery, or the first released event; -1: it has delivered nothing.
        start: `earliest` or `latest`, if nothing else decides.
        is_added: whether it was added after the group began.
    """
    if delivered_next >= 0:
        return _from(view, Begin(delivered_next))
    if checkpoint is not None:
        if checkpoint.sequence < 0 and checkpoint.offset != START_OFFSET:
            return Opening(Begin(-1, checkpoint.offset))  # of an SDK that writes no sequence number
        return _from(view, Begin(checkpoint.sequence + 1, checkpoint.offset))
    if start == "latest":
        # Until the first event is settled, a later reader would begin after the events that arrive meanwhile (I4).
        if view.last < 0 or is_added:
            return Opening(Begin(), checkpoint=Checkpoint(-1, START_OFFSET))
        kept = Checkpoint(view.last, view.last_offset)
        return Opening(Begin(view.last + 1, view.last_offset), checkpoint=kept)
    return Opening(Begin())


def reached(view: PartitionView, begin: Begin) -> int:
    """The sequence number up to which a partition has been read where its link begins. Of a checkpoint without one it is known only at the end."""
    is_at_end = view.is_empty or (begin.sequence < 0 and begin.offset != "" and begin.offset == view.last_offset)
    return view.last + 1 if is_at_end else max(0, begin.sequence)


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
