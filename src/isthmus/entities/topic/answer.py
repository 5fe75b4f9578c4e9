"""Answers to a topic's senders: what was sent is accepted when all of its copies are durable.

What it is: senders that wait, and how far the copies are. What it is not: the copying (`topic`), or the durability of
messages (`isthmus.entities.storage.staging`). See docs/explanation/store.md.

Invariants:
    I1. Every sender is told once, in the order of their messages, when all up to its last one is copied, or the topic ends.
"""

from __future__ import annotations

import logging
from collections import deque

from isthmus.entities.storage.staging import Callback

__all__ = ["Answers"]

_log = logging.getLogger(__name__)


class Answers:
    """The senders of one topic that wait."""

    __slots__ = ("_copied", "_waiting")

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, Callback]] = deque()
        # Below that number all is copied, and the copies are durable.
        self._copied = 0

    def wait(self, last: int, tell: Callback) -> None:
        """A sender's messages up to a number are durable: tell it when their copies are, too; now, if they are."""
        if last < self._copied:
            tell()
        else:
            self._waiting.append((last, tell))

    def copied(self, below: int) -> None:
        """All below a number is copied, and the copies are durable."""
        self._copied = max(self._copied, below)
        while self._waiting and self._waiting[0][0] < self._copied:
            _told(self._waiting.popleft()[1])

    def tell_all(self) -> None:
        """What was sent is durable, and will be copied, or has gone with the topic."""
        waiting, self._waiting = self._waiting, deque()
        for _, tell in waiting:
            _told(tell)


def _told(tell: Callback) -> None:
    """Tell a sender; what that raises keeps no other one from being told."""
    try:
        tell()
    except Exception:  # noqa: BLE001 - a fault of whoever sent
        _log.exception("a fault where a sender was told")
