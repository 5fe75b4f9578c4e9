"""A file that is read again after it has changed.

What it is: the result of a loader for a file, cached, and loaded again when the file's time or size changes; checked every few seconds.
A lease lasts an hour, so a worker has to check itself. What it is not: the loaders.

Invariants:
    I1. If a changed file cannot be read, that is logged once, and the previous result stays in use.
    I2. A file that is being written is not read: a file that ends in the middle of a line may be valid.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["CHECK_SECONDS", "WatchedFile"]

CHECK_SECONDS = 2.0
# A file written this recently, by its time, may be incomplete; it is complete when two checks find it unchanged.
_FRESH_SECONDS = 1.0

log = logging.getLogger(__name__)
T = TypeVar("T")


class WatchedFile(Generic[T]):
    """The result of loading a file.

    Args:
        path: the file.
        load: loads the file; called with the path.
        clock: monotonic seconds.
        wall: seconds since the epoch, like files' times.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is invalid.
    """

    def __init__(
        self,
        path: str,
        load: Callable[[str], T],
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._path = path
        self._load = load
        self._clock = clock
        self._wall = wall
        self._seen = self._last = self._check()
        self._value = load(path)
        self._due = clock() + CHECK_SECONDS
        self._is_logged = False

    def get(self) -> T:
        """The result for the current file."""
        now = self._clock()
        if now >= self._due:
            self._due = now + CHECK_SECONDS
            self._renew()
        return self._value

    def _renew(self) -> None:
        try:
            last, self._last = self._last, self._check()
            if self._last == self._seen or (self._last != last and self._is_fresh(self._last)):
                return
            value = self._load(self._path)
            if self._check() == self._last:
                self._value, self._seen, self._is_logged = value, self._last, False
                log.info("%s has changed and was read again", self._path)
        except Exception as error:  # noqa: BLE001 - the loader belongs to a library; the previous result is valid
            if not self._is_logged:
                self._is_logged = True
                log.warning("%s cannot be read again; the previous content stays in use (%s)", self._path, error)

    def _is_fresh(self, seen: tuple[int, int]) -> bool:
        return seen[0] / 1e9 > self._wall() - _FRESH_SECONDS

    def _check(self) -> tuple[int, int]:
        found = os.stat(self._path)
        return found.st_mtime_ns, found.st_size
