"""Outcomes for a topic's senders: a sender gets `accepted` when all copies of its messages are durable.

What it is: waiting senders, and the progress of the copies. What it is not: the copying (`topic`), or the durability of
messages (`isthmus.entities.storage.staging`). See docs/explanation/store.md.

Invariants:
    I1. Every sender is called back once, in the order of their messages, when all messages up to its last one are copied, or the topic ends.
"""

from __future__ import annotations

import logging
from collections import deque

from isthmus.entities.storage.staging import Callback

__all__ = ["Answers"]

_log = logging.getLogger(__name__)


class Answers:
    """The waiting senders of one topic."""

    __slots__ = ("_copied", "_waiting")

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, Callback]] = deque()
        # All below that number are copied, and the copies are durable.
        self._copied = 0

    def wait(self, last: int, on_copied: Callback) -> None:
        """A sender's messages up to a number are durable: call back when their copies are, too; immediately, if they are."""
        if last < self._copied:
            on_copied()
        else:
            self._waiting.append((last, on_copied))

    def copied(self, below: int) -> None:
        """All messages below a number are copied, and the copies are durable."""
        self._copied = max(self._copied, below)
        while self._waiting and self._waiting[0][0] < self._copied:
            _call(self._waiting.popleft()[1])

    def call_all(self) -> None:
        """Call back all: their messages are durable, and will be copied, or were removed with the topic."""
        waiting, self._waiting = self._waiting, deque()
        for _, on_copied in waiting:
            _call(on_copied)


def _call(on_copied: Callback) -> None:
    """Call back a sender; an error of it does not keep others from being called."""
    try:
        on_copied()
    except Exception:  # noqa: BLE001 - a fault of the sender's callback
        _log.exception("a fault of a sender's callback")
