"""One callback for the commits of several stores.

What it is: a pair of callbacks that several commits share. What it is not: the commits (`entity`).

Invariants:
    I1. The last commit to end calls back, once; with the first error if there was one.
"""

from __future__ import annotations

from isthmus.entities.storage.staging import Callback, Failure

__all__ = ["Join"]


class Join:
    """One callback for several commits.

    Args:
        count: how many.
        on_durable: called when all are durable.
        on_failed: called when one has failed.
    """

    __slots__ = ("_error", "_left", "_on_durable", "_on_failed")

    def __init__(self, count: int, on_durable: Callback | None, on_failed: Failure | None) -> None:
        self._left = count
        self._error: Exception | None = None
        self._on_durable = on_durable
        self._on_failed = on_failed

    def durable(self) -> None:
        """One commit is durable."""
        self._end(None)

    def failed(self, error: Exception) -> None:
        """One commit has failed."""
        self._end(error)

    def _end(self, error: Exception | None) -> None:
        self._error = self._error or error
        self._left -= 1
        if self._left:
            return
        if self._error is None:
            if self._on_durable is not None:
                self._on_durable()
        elif self._on_failed is not None:
            self._on_failed(self._error)
