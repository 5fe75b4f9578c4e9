"""The check that bodies of large messages can be read, before their messages are deleted.

What it is: each body read from its beginning to its end, in a thread, a part at a time. What it is not: the sending (`stream`), which reads them again.

Invariants:
    I1. No more than one part of a body is in memory here, and other streams are read between two bodies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future

from isthmus.broker.large.desk import LargeDesk
from isthmus.broker.large.stream import PART_BYTES
from isthmus.entities import Blob
from isthmus.errors import IsthmusError, StoreError

__all__ = ["check_bodies"]


def check_bodies(desk: LargeDesk, bodies: Sequence[Blob], done: Callable[[IsthmusError | None], None]) -> None:
    """Read bodies.

    Args:
        desk: of the namespace.
        bodies: kept until the end.
        done: called on the loop: with None where all can be read, else with the reason; not after the desk was closed.
    """
    left = list(bodies)

    def go_on() -> None:
        if left:
            desk.read(lambda: _read(desk, left[-1]), ended)
        else:
            done(None)

    def ended(job: Future[None]) -> None:
        error = job.exception()
        if error is not None:
            done(error if isinstance(error, IsthmusError) else StoreError(type(error).__name__))
            return
        left.pop()
        go_on()

    go_on()


def _read(desk: LargeDesk, body: Blob) -> None:
    """In a thread."""
    assert desk.files is not None
    reader = desk.files.open(body.number)
    try:
        for start in range(0, body.size_bytes, PART_BYTES):
            reader.read(start, min(PART_BYTES, body.size_bytes - start))
    finally:
        reader.close()
