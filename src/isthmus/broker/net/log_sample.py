"""A limit for the log lines that clients can cause.

What it is: of each kind of line so many in an interval, and one line with the number of those left out. A kind is a
line's format, so that values of a client do not make new kinds. What it is not: a limit for the namespace's own errors,
which are all written.

Invariants:
    I1. A kind never has more than `LINES` lines and one count in an interval of `SECONDS`, whatever clients do.
    I2. Every line that is left out is counted in one that is written.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

__all__ = ["LINES", "SECONDS", "LogSample", "LogSampleFilter"]

LINES = 100
SECONDS = 10.0
# Formats are constants of the program.
_KINDS_LIMIT = 1000


class LogSample:
    """The numbers of lines written and left out in the current interval, by kind."""

    def __init__(self) -> None:
        self._counts: dict[str, tuple[float, int]] = {}

    def admit(self, kind: str, now: float) -> bool:
        """Whether a line is written.

        Args:
            kind: of the line.
            now: monotonic seconds.
        """
        since, count = self._counts.get(kind, (now, 0))
        self._counts[kind] = since, count + 1
        return count < LINES or len(self._counts) > _KINDS_LIMIT

    def close(self, now: float) -> list[tuple[str, int]]:
        """The kinds whose interval is over, each with the number of lines left out, if any."""
        over = [kind for kind, (since, _) in self._counts.items() if now - since >= SECONDS]
        counts = [(kind, self._counts.pop(kind)[1] - LINES) for kind in over]
        return [(kind, count) for kind, count in counts if count > 0]


class LogSampleFilter(logging.Filter):
    """A filter for handlers: it samples the lines of the namespace's server about its clients, and those about requests that are not relayed.

    Args:
        monotonic: seconds.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._sample = LogSample()
        self._monotonic = monotonic
        self._log = logging.getLogger(__name__)

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno > logging.WARNING or not record.name.startswith("isthmus.broker") or record.exc_info:
            return True
        if record.name == __name__:
            return True
        self.report()
        return self._sample.admit(str(record.msg), self._monotonic())

    def report(self) -> None:
        """Writes how many lines were left out in the intervals that are over."""
        for kind, count in self._sample.close(self._monotonic()):
            self._log.warning("%d more lines in %d s were left out, all of the kind: %s", count, SECONDS, kind)
