"""The messages that the retention removed unread: which are reported, and when.

What it is: the account of one source's losses, pure. A loss is reported by losing the source, which opens again after it. What it is not:
its detection (`opening`, `source`).

Invariants:
    I1. Each offset that was removed is reported once.
    I2. Between two reported losses messages are delivered: a retention that removes faster than the source opens again does not keep it
        from reading.
"""

from __future__ import annotations

from collections.abc import Iterable

from isthmus.bridge.index_set import IndexSet
from isthmus.connectors.rabbitmq_streams.opening import removed
from isthmus.errors import IsthmusError

__all__ = ["Losses"]


class Losses:
    """The losses of one source.

    Args:
        stream: its name.
    """

    def __init__(self, stream: str) -> None:
        self._stream = stream
        self._known = IndexSet()
        self._owed = IndexSet()  # found, and not reported yet
        self._may_report = True

    def is_news(self, first: int, stop: int) -> bool:
        """Whether any offset from `first` to the one before `stop` is unknown."""
        return bool(self._news(first, stop))

    def _news(self, first: int, stop: int) -> IndexSet:
        news = IndexSet()
        if first < stop:
            news.add(first, stop)
            for low, high in self._known:
                news.remove(low, high)
        return news

    def found(self, ranges: Iterable[tuple[int, int]]) -> IsthmusError | None:
        """Adds removed offsets; returns the error with which the source is lost now, None if it continues."""
        for first, stop in ranges:
            for low, high in self._news(first, stop):
                self._owed.add(low, high)
                self._known.add(low, high)
        return self._report() if self._may_report else None

    def delivered(self) -> IsthmusError | None:
        """Messages were delivered; returns the error with which the source is lost now, None if it continues."""
        self._may_report = True
        return self._report()

    def _report(self) -> IsthmusError | None:
        owed, self._owed = self._owed, IndexSet()
        if not owed:
            return None
        self._may_report = False
        return removed(self._stream, list(owed))
