"""Two queries of one route that take turns, so that messages need not wait while Spark changes leases.

What it is: the files by which the leases of the pair, and the looks before them, know whose turn it is. One query's lease
moves messages; shortly before it ends, the other's begins, connects both of its ends, and stands next; the first ends when
it sees that, and the other takes over within milliseconds. What it is not: the lease, or the decision to start one.

The files lie in a folder of the route's: `holder`, locked by the lease whose turn it is, which notes in it its name and when
it means to end, and `next`, locked by the lease that is ready to take over.

Invariants:
    I1. At most one lease of the pair has the turn. It is a lock of the system's, so that it ends with the process that
        has it, however that ends.
    I2. While nobody has the turn, the query that had it last looks for messages; at first the one named `FIRST`.
"""

from __future__ import annotations

import enum
import fcntl
import os
import struct
import time
from dataclasses import dataclass
from pathlib import Path

from isthmus.errors import InvalidArgumentError

__all__ = ["FIRST", "SECOND", "Place", "Turn", "prepare_turns"]

FIRST = "first"
SECOND = "second"

_HOLDER = "holder"
_NEXT = "next"
_NAMES = (FIRST, SECOND)
# Whose turn it is (an index of `_NAMES`), and until when by the monotonic clock, which all processes share.
_NOTE = struct.Struct("<Bxxxxxxxd")


class Place(enum.Enum):
    """What a query that is about to look should do."""

    LOOK = "nobody has the turn, and it is this query's to look"
    WAIT = "the other one has it, or is about to"
    STAND_NEXT = "the other one is about to give it up: begin a lease"


@dataclass(frozen=True, slots=True)
class _Standing:
    held: bool
    name: str
    ends_at: float


def prepare_turns(folder: Path) -> None:
    """Make the folder of a route's turns, before either query starts; the first one looks first."""
    folder.mkdir(parents=True, exist_ok=True)
    # In place: workers that outlived their driver may still hold the locks and read the note, which is never cut short.
    descriptor = os.open(folder / _HOLDER, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.pwrite(descriptor, _NOTE.pack(0, 0.0), 0)
    finally:
        os.close(descriptor)
    (folder / _NEXT).touch(mode=0o600)


class Turn:
    """One query's side of the pair: of its source at the driver, or of one of its leases.

    Args:
        folder: made by `prepare_turns`.
        name: FIRST or SECOND.

    Raises:
        InvalidArgumentError: nobody prepared the folder.
    """

    def __init__(self, folder: Path, name: str) -> None:
        if not (folder / _HOLDER).is_file():
            raise InvalidArgumentError(f"turns: '{folder}' was not prepared; start both queries by start_turns")
        self._folder = folder
        self._name = name
        self._holder: int | None = None
        self._next: int | None = None
        self._asking: int | None = None  # the holder's file, open for one who asks for the turn again and again

    # ---- for a lease

    def stand_next(self) -> None:
        """Tell the lease whose turn it is that this one is ready."""
        if self._next is None:
            self._next = self._locked(_NEXT)

    def take(self, ends_at: float) -> bool:
        """Take the turn if nobody has it; whether this lease has it now.

        Args:
            ends_at: when the lease means to end, by the monotonic clock.
        """
        if self._holder is None:
            if self._asking is None:
                self._asking = self._opened(_HOLDER)
            if not _lock(self._asking):
                return False
            self._holder, self._asking = self._asking, None
            os.pwrite(self._holder, _NOTE.pack(_NAMES.index(self._name), ends_at), 0)
            self._unlock_next()
        return True

    def is_awaited(self) -> bool:
        """Whether another lease is ready to take over."""
        return self._is_locked(_NEXT)

    def remaining_seconds(self) -> float:
        """How long the lease whose turn it is means to go on; 0 where nobody has it."""
        standing = self._standing()
        return max(0.0, standing.ends_at - time.monotonic()) if standing.held else 0.0

    def leave(self) -> None:
        """Give up the turn, and the place of the next. No error if it had neither."""
        self._unlock_next()
        for descriptor in (self._holder, self._asking):
            if descriptor is not None:
                os.close(descriptor)
        self._holder = self._asking = None

    # ---- for the looks

    def place(self, lead_seconds: float) -> Place:
        """What to do now.

        Args:
            lead_seconds: how long before the other's end a lease should begin to be ready in time.
        """
        standing = self._standing()
        if not standing.held:
            return Place.WAIT if standing.name != self._name or self.is_awaited() else Place.LOOK
        if standing.name == self._name or standing.ends_at - time.monotonic() > lead_seconds:
            return Place.WAIT
        return Place.STAND_NEXT

    # ---- the files

    def _standing(self) -> _Standing:
        # Looked at before the lock: whoever takes the turn in between is seen next time.
        number, ends_at = _NOTE.unpack((self._folder / _HOLDER).read_bytes()[: _NOTE.size])
        return _Standing(self._is_locked(_HOLDER), _NAMES[number], ends_at)

    def _opened(self, name: str) -> int:
        return os.open(self._folder / name, os.O_RDWR | os.O_CLOEXEC)

    def _locked(self, name: str) -> int | None:
        descriptor = self._opened(name)
        if _lock(descriptor):
            return descriptor
        os.close(descriptor)
        return None

    def _is_locked(self, name: str) -> bool:
        # A shared lock, so that two who only look do not take each other for the holder.
        descriptor = self._opened(name)
        try:
            return not _lock(descriptor, fcntl.LOCK_SH)
        finally:
            os.close(descriptor)

    def _unlock_next(self) -> None:
        if self._next is not None:
            os.close(self._next)
            self._next = None


def _lock(descriptor: int, kind: int = fcntl.LOCK_EX) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
