"""The scans of a RocksDB database that are not over, so that it can be closed below them.

What it is: a database stays open, and its folder locked, for as long as one iterator of it exists: one that a suspended scan
has, or a frame in the traceback of an error that somebody keeps. Here each scan has its iterator in a place from which it can
be taken.

Invariants:
    I1. Behind `close_all` no scan that stood still has an iterator; it raises where it goes on, and does not end as if there
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
        pairs: the iterator; None once it was taken.
    """

    __slots__ = ("__weakref__", "pairs")

    def __init__(self, pairs: Any) -> None:
        self.pairs = pairs

    def close(self) -> None:
        """Take the iterator."""
        self.pairs = None


class OpenScans:
    """The scans of one database."""

    def __init__(self) -> None:
        self._scans: weakref.WeakSet[OpenScan] = weakref.WeakSet()
        self._lock = threading.Lock()  # scans are begun in several threads

    def begin(self, pairs: Any) -> OpenScan:
        """Keep a scan's iterator."""
        scan = OpenScan(pairs)
        with self._lock:
            self._scans.add(scan)
        return scan

    def close_all(self) -> None:
        """Take the iterators of all scans."""
        with self._lock:
            scans, self._scans = list(self._scans), weakref.WeakSet()
        for scan in scans:
            scan.close()
