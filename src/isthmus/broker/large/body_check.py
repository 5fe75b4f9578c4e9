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
    """One check. The bodies that it keeps have to go when it ends, not when Python collects garbage: it never refers to itself, and
    nothing that an error's traceback refers to keeps them afterwards.
    """

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
        if not self._left:
            self._end(None)
            return
        desk, number, size_bytes = self._desk, self._left[-1].number, self._left[-1].size_bytes
        desk.read(lambda: _read(desk, number, size_bytes), self._ended)

    def _ended(self, job: Future[None]) -> None:
        error = job.exception()
        if error is None:
            self._left.pop()
            self.go_on()
        elif self._retries_left:
            self._retries_left -= 1
            self._desk.call_later(RETRY_SECONDS, self.go_on)
        else:
            self._end(error if isinstance(error, IsthmusError) else StoreError(type(error).__name__))

    def _end(self, error: IsthmusError | None) -> None:
        done, self._done = self._done, _nothing
        self._left.clear()
        done(error)


def _nothing(error: IsthmusError | None) -> None:
    """It is over."""


def _read(desk: LargeDesk, number: int, size_bytes: int) -> None:
    """In a thread."""
    assert desk.files is not None
    reader = desk.files.open(number)
    try:
        for start in range(0, size_bytes, PART_BYTES):
            reader.read(start, min(PART_BYTES, size_bytes - start))
    finally:
        reader.close()
