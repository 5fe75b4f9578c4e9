"""The check that bodies of large messages can be read, before their messages are deleted.

What it is: each body read from its beginning to its end, in a thread, a part at a time. What it is not: the sending (`stream`), which reads them again.

Invariants:
    I1. No more than one part of a body is in memory here, and other streams are read between two bodies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future

from isthmus.broker.large.desk import LargeDesk
from isthmus.broker.large.stream import PART_BYTES, RETRY_SECONDS
from isthmus.entities import Blob
from isthmus.errors import IsthmusError, StoreError

__all__ = ["check_bodies"]


def check_bodies(
    desk: LargeDesk, bodies: Sequence[Blob], done: Callable[[IsthmusError | None], None], *, retries: int = 0
) -> None:
    """Read bodies.

    Args:
        desk: of the namespace.
        bodies: kept until the end.
        done: called on the loop: with None where all can be read, else with the reason; not after the desk was closed.
        retries: how often a refused read is repeated, after a pause: a process may have too many files open.
    """
    _Check(desk, bodies, done, retries).go_on()


class _Check:
    """One check. It never refers to itself: the bodies that it keeps have to go when it ends, not when Python collects garbage."""

    __slots__ = ("_desk", "_done", "_left", "_retries_left")

    def __init__(
        self, desk: LargeDesk, bodies: Sequence[Blob], done: Callable[[IsthmusError | None], None], retries: int
    ) -> None:
        self._desk = desk
        self._left = list(bodies)
        self._done = done
        self._retries_left = retries

    def go_on(self) -> None:
        """Read the next body."""
        if self._left:
            self._desk.read(lambda: _read(self._desk, self._left[-1]), self._ended)
        else:
            self._done(None)

    def _ended(self, job: Future[None]) -> None:
        error = job.exception()
        if error is None:
            self._left.pop()
            self.go_on()
        elif self._retries_left:
            self._retries_left -= 1
            self._desk.call_later(RETRY_SECONDS, self.go_on)
        else:
            self._done(error if isinstance(error, IsthmusError) else StoreError(type(error).__name__))


def _read(desk: LargeDesk, body: Blob) -> None:
    """In a thread."""
    assert desk.files is not None
    reader = desk.files.open(body.number)
    try:
        for start in range(0, body.size_bytes, PART_BYTES):
            reader.read(start, min(PART_BYTES, body.size_bytes - start))
    finally:
        reader.close()
