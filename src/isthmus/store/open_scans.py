"""The open scans of a RocksDB database, so that it can be closed in spite of them.

What it is: a database stays open, and its folder locked, for as long as one iterator of it exists: a suspended scan has
one, or a frame in the traceback of an error that is still referenced. Here each scan has its iterator in an object from which it can
be removed.

Invariants:
    I1. After `close_all` no suspended scan has an iterator; it raises when it is continued, and does not end as if there
        were nothing more.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

__all__ = ["OpenScan", "OpenScans"]


class OpenScan:
    """The iterator of one scan.

    Attributes:
        pairs: the iterator; None once it was removed.
    """

    __slots__ = ("__weakref__", "pairs")

    def __init__(self, pairs: Any) -> None:
        self.pairs = pairs

    def close(self) -> None:
        """Remove the iterator."""
        self.pairs = None


class OpenScans:
    """The scans of one database."""

    def __init__(self) -> None:
        self._scans: weakref.WeakSet[OpenScan] = weakref.WeakSet()
        self._lock = threading.Lock()  # scans are begun in several threads

    def begin(self, pairs: Any) -> OpenScan:
        """Register a scan's iterator."""
        scan = OpenScan(pairs)
        with self._lock:
            self._scans.add(scan)
        return scan

    def close_all(self) -> None:
        """Remove the iterators of all scans."""
        with self._lock:
            scans, self._scans = list(self._scans), weakref.WeakSet()
        for scan in scans:
            scan.close()
