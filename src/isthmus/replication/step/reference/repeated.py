"""A value that is read at the start, and again at intervals in the background.

What it is: the last value of a loader. Messages do not wait while it is read again. What it is not: the loader.

Invariants:
    I1. If the value cannot be read again, that is logged once, and the previous value stays in use.
    I2. At most one reading runs at a time.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["FIRST_SECONDS", "Repeated"]

FIRST_SECONDS = 30.0
"""The longest first reading: its route waits for it."""

log = logging.getLogger(__name__)
T = TypeVar("T")


class Repeated(Generic[T]):
    """The last value.

    Args:
        load: reads the value; may block.
        every_seconds: interval between two readings.
        what: description of the value, for the log.
        clock: monotonic seconds.
        first_seconds: the longest first reading.

    Raises:
        OSError: the loader did not return in that time.
        ValueError: an error of the loader.
    """

    def __init__(
        self,
        load: Callable[[], T],
        every_seconds: float,
        what: str,
        clock: Callable[[], float] = time.monotonic,
        first_seconds: float = FIRST_SECONDS,
    ) -> None:
        self._load = load
        self._every_seconds = every_seconds
        self._what = what
        self._clock = clock
        self._values: list[T] = []
        self._errors: list[Exception] = []
        self._is_logged = False
        self._thread = self._begin()
        self._thread.join(first_seconds)
        if self._errors:
            raise self._errors[0]
        if not self._values:
            raise TimeoutError(f"{what} was not read within {first_seconds:g} s")
        self._value = self._values.pop()
        self._due = clock() + every_seconds

    def get(self) -> T:
        """The last value."""
        self._take()
        if self._clock() >= self._due and not self._thread.is_alive():
            self._thread = self._begin()
            self._due = self._clock() + self._every_seconds
        return self._value

    def _begin(self) -> threading.Thread:
        thread = threading.Thread(target=self._run, name="isthmus-reference", daemon=True)
        thread.start()
        return thread

    def _run(self) -> None:
        try:
            self._values.append(self._load())
        except Exception as error:  # noqa: BLE001 - the loader belongs to a library; the previous value is valid
            self._errors.append(error)

    def _take(self) -> None:
        """Use the result of the last reading."""
        if self._values:
            self._value, self._is_logged = self._values.pop(), False
        if self._errors:
            error = self._errors.pop()
            if not self._is_logged:
                self._is_logged = True
                log.warning("%s cannot be read again; the previous data stays in use (%s)", self._what, error)
