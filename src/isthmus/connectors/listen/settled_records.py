"""Which records of a listener's spool are settled, across restarts.

What it is: the account, and its file. What it is not: the spool.

Invariants:
    I1. A record counts as settled on disk only after it was settled.
    I2. A file that is damaged, or belongs to another spool, is ignored: all records in the spool are delivered again.
    I3. A number that no record has yet is not settled, even if a record had it before segments were deleted by someone else.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

from isthmus.bridge.index_set import IndexSet
from isthmus.whole_file import write_file

__all__ = ["SettledRecords"]

log = logging.getLogger(__name__)


class SettledRecords:
    """The account of one spool.

    Args:
        path: the file.

    Attributes:
        front: everything below this number is settled.
        is_dirty: whether the file is out of date.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._above = IndexSet()
        self._spool = ""
        self.front = 0
        self.is_dirty = False

    @property
    def settled(self) -> int:
        """How many records are settled, deleted ones included."""
        return self.front + self._above.count

    def load(self, spool: str) -> None:
        """Reads the file; the file of another spool is ignored."""
        self._spool = spool
        try:
            stored = json.loads(self._path.read_bytes())
            if stored["spool"] != spool:
                return
            front, ranges = int(stored["front"]), [(int(low), int(high)) for low, high in stored["above"]]
        except FileNotFoundError:
            return
        except (ValueError, LookupError, TypeError):
            log.error("%s is damaged; all messages in the spool are delivered again", self._path)
            return
        self.front = front
        for low, high in ranges:
            self._above.add(low, high)

    def save(self) -> None:
        """Writes the file."""
        write_file(
            self._path, json.dumps({"spool": self._spool, "front": self.front, "above": list(self._above)}).encode()
        )
        self.is_dirty = False

    def end_at(self, number: int) -> None:
        """Sets the number of the spool's next record (I3)."""
        if self._above:
            self._above.remove(number, max(number + 1, *(stop for _, stop in self._above)))
        if self.front > number:
            log.error("%s names records that are not in the spool; their segments were removed", self._path)
            self.front = number
            self.is_dirty = True

    def add(self, number: int) -> None:
        """Settles a record."""
        self.add_range(number, number + 1)

    def add_range(self, first: int, stop: int) -> None:
        """Settles the records from `first` up to `stop`."""
        first = max(first, self.front)
        if stop <= first or (stop == first + 1 and first in self._above):
            return
        self.is_dirty = True
        self._above.add(first, stop)
        if self._above.first()[0] == self.front:
            low, high = self._above.first()
            self._above.remove(low, high)
            self.front = high

    def __contains__(self, number: int) -> bool:
        return number < self.front or number in self._above
