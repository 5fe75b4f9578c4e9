"""The checkpoints of one source: which of them an opening reads, and when they are written.

What it is: the requests to the thread and its answers, and the checkpoints of partitions that had none. What it is not: the store (`thread`),
or the account of settled events (`isthmus.connectors.eventhubs.partition.reading`).

Invariants:
    I1. The answer to an earlier opening changes nothing in a later one.
    I2. A checkpoint of a partition that had none is written again, by the next opening or at the end, until it is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from isthmus.connectors.checkpoint.checkpoint import Checkpoint, GroupKey
from isthmus.connectors.checkpoint.thread import CheckpointThread, Loaded
from isthmus.errors import IsthmusError

__all__ = ["Checkpointer", "Progress"]


class Progress(Protocol):
    """The account of read events: which checkpoints it allows."""

    def begin_commit(self, now: float) -> Mapping[int, Checkpoint]:
        """The checkpoints to write now; empty: none is due."""
        ...

    def unconfirmed(self) -> Mapping[int, Checkpoint]:
        """The checkpoints whose write is not confirmed."""
        ...

    def written(self, checkpoints: Mapping[int, Checkpoint], *, failed: bool, now: float) -> None:
        """A write was answered."""
        ...


class Checkpointer:
    """The checkpoints of one source.

    Args:
        thread: the thread that uses the store.
        progress: the account.

    Attributes:
        kept: the existing checkpoints, as the opening reads them; None: there is no answer yet.
        first: the start of partitions that had no checkpoint, until one is written.
        group: the owner of the checkpoints; None before the first opening.
    """

    def __init__(self, thread: CheckpointThread, progress: Progress) -> None:
        self.kept: dict[int, Checkpoint] | None = None
        self.first: dict[int, Checkpoint] = {}
        self.group: GroupKey | None = None
        self._thread = thread
        self._progress = progress
        self._loads = 0

    def load(self, group: GroupKey) -> None:
        """Requests the existing checkpoints; an opening begins."""
        self.group, self.kept = group, None
        self._loads += 1
        self._thread.load(group, self._loads)

    def of_log(self, created_ms: int) -> None:
        """Sets when the log was created; 0: unknown."""
        if self.group is not None:
            self.group = self.group._replace(created_ms=created_ms)

    def take(self, now: float, *, is_opening: bool) -> IsthmusError | None:
        """Takes the answers; returns why the source is lost. `is_opening`: whether it waits for the existing checkpoints."""
        failure: IsthmusError | None = None
        for answer in self._thread.take():
            if not isinstance(answer, Loaded):
                self._progress.written(answer.checkpoints, failed=answer.error is not None, now=now)
                if answer.error is None:
                    for number in answer.checkpoints:
                        self.first.pop(number, None)
            elif answer.number != self._loads or not is_opening:
                continue
            elif answer.error is None:
                self.kept = dict(answer.checkpoints)
            failure = failure or answer.error
        return failure

    def write_first(self) -> None:
        """Writes the start of partitions that had no checkpoint."""
        if self.first and self.group is not None:
            self._thread.write(self.group, dict(self.first))

    def commit(self, now: float) -> None:
        """Writes the checkpoints that are due."""
        if self.group is not None and (checkpoints := self._progress.begin_commit(now)):
            self._thread.write(self.group, checkpoints)

    def stop(self) -> CheckpointThread | None:
        """Writes the remaining checkpoints in the background; returns the thread that does so, None where it was never started."""
        last = self.first | dict(self._progress.unconfirmed())
        if last and self.group is not None:
            self._thread.write(self.group, last)
        self._thread.stop()
        return self._thread if self._thread.ident is not None else None

    @property
    def has_stopped(self) -> bool:
        """Whether no write is pending."""
        return not self._thread.is_alive()
