"""A scan that survives the copy in which it began.

What it is: an iterator over one copy after the other. What it is not: a snapshot over all of them (`journal`, I5).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from isthmus.errors import StoreError
from isthmus.store.zone.member import Member

if TYPE_CHECKING:
    from isthmus.store.zone.journal import ZonedJournal

__all__ = ["ZonedScan"]


class ZonedScan:
    """Keys and values, from one copy after the other if necessary (I5). As with any scan, nothing follows an error."""

    def __init__(self, journal: ZonedJournal, first: bytes, end: bytes, read_ahead: bool) -> None:
        self._journal = journal
        self._first = first
        self._end = end
        self._read_ahead = read_ahead
        self._is_over = False
        self._member, self._pairs = self._open()

    def _open(self) -> tuple[Member, Iterator[tuple[bytes, bytes]] | None]:
        return self._journal.open_scan(self._first, self._end, self._read_ahead, self)

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        return self

    def __next__(self) -> tuple[bytes, bytes]:
        while not self._is_over:
            try:
                pair = self._step()
            except BaseException:
                # A caller of several pairs has lost those before: they must not be skipped in another call.
                self._is_over = True
                self._pairs = None
                raise
            if pair is not None:
                self._first = pair[0] + b"\0"
                return pair
        raise StopIteration

    def _step(self) -> tuple[bytes, bytes] | None:
        """The next pair; None if there is none, or if another copy is to be read."""
        pairs = self._pairs
        if pairs is None:
            self._member, pairs = self._open()
            self._pairs = pairs
            assert pairs is not None
        try:
            pair = next(pairs, None)
        except StoreError as error:
            self._pairs = None
            self._journal.unreadable(self._member, error)
            return None
        if pair is None:
            self._is_over = True
            self._pairs = None
        return pair

    def detach(self) -> None:
        """Release the copy, which is about to be closed."""
        self._pairs = None
