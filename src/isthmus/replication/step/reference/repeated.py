"""What is read once at the beginning, and again every so often in the background.

What it is: the last that a loader gave. Messages do not wait while it is read again. What it is not: the loader.

Invariants:
    I1. What cannot be read again is told once, and what was read before stays in use.
    I2. One reading is under way at a time.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["FIRST_SECONDS", "Repeated"]

FIRST_SECONDS = 30.0
"""How long the first reading may take: its route waits for it."""

log = logging.getLogger(__name__)
T = TypeVar("T")


class Repeated(Generic[T]):
    """The last that was read.

    Args:
        load: reads it; may block.
        every_seconds: after how long it is read again.
        what: is read, in the words of the log.
        clock: monotonic seconds.
        first_seconds: how long the first reading may take.

    Raises:
        OSError: it gave no answer in that time.
        ValueError: as the loader says.
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
        self._is_told = False
        self._thread = self._begin()
        self._thread.join(first_seconds)
        if self._errors:
            raise self._errors[0]
        if not self._values:
            raise TimeoutError(f"{what} was not read within {first_seconds:g} s")
        self._value = self._values.pop()
        self._due = clock() + every_seconds

    def get(self) -> T:
        """What was read last."""
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
        except Exception as error:  # noqa: BLE001 - the loader is a library's; what was read before is good
            self._errors.append(error)

    def _take(self) -> None:
        """What the last reading found."""
        if self._values:
            self._value, self._is_told = self._values.pop(), False
        if self._errors:
            error = self._errors.pop()
            if not self._is_told:
                self._is_told = True
                log.warning("%s cannot be read again; what was read before stays in use (%s)", self._what, error)
