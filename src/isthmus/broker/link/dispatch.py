"""Round-robin: distributes one queue's messages over the links that wait for them.

What it is: the round of one queue over its ready links. What it is not: credit and settlement (`isthmus.broker.link.sender_link`).
Spec: docs/explanation/protocol.md, Tokens: competing receivers share a queue.

Invariants:
    I1. Links are served in turn; no link gets a second share while another one that is ready waits for its first.
    I2. One round takes at most `ROUND_MESSAGES`; other queues and the sockets are served in between.
    I3. An idle queue costs nothing: rounds run only after something became available, a client granted credit, or a
        connection can write again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque

from isthmus.broker.link.condition import refusal
from isthmus.broker.link.sender_link import SenderLink
from isthmus.entities.port import MessageSource
from isthmus.errors import IsthmusError

__all__ = ["Dispatch"]

_log = logging.getLogger(__name__)

# Messages that one link gets at a time: alone, enough to amortise the cost of a round; with others fewer, so that many
# receivers get about the same.
_SHARE_ALONE = 256
_SHARE = 32
ROUND_MESSAGES = 1024


class Dispatch:
    """The links that receive from one queue.

    Args:
        queue: its `add_listener` wakes the rounds.
    """

    def __init__(self, queue: MessageSource) -> None:
        self.queue = queue
        self._links: set[SenderLink] = set()
        self._ready: deque[SenderLink] = deque()
        self._queued: set[SenderLink] = set()
        self._draining: dict[SenderLink, None] = {}
        self._scheduled = False
        self._loop = asyncio.get_running_loop()
        queue.add_listener(self.wake)

    @property
    def is_empty(self) -> bool:
        """Whether no link receives from the queue."""
        return not self._links

    def add(self, sender_link: SenderLink) -> None:
        """Adds a link; `offer` says when it can take messages."""
        self._links.add(sender_link)

    def offer(self, sender_link: SenderLink) -> None:
        """A link got credit, a drain or room to write."""
        if sender_link not in self._links:
            return
        if sender_link.link.drain:
            self._draining[sender_link] = None
        if sender_link not in self._queued and sender_link.is_ready:
            self._queued.add(sender_link)
            self._ready.append(sender_link)
        self.wake()

    def remove(self, sender_link: SenderLink) -> None:
        """Removes a link; no error if it is removed already."""
        self._links.discard(sender_link)
        self._draining.pop(sender_link, None)
        if sender_link in self._queued:
            self._queued.discard(sender_link)
            self._ready.remove(sender_link)

    def close(self) -> None:
        """Stop listening to the queue."""
        self.queue.remove_listener(self.wake)
        self._links.clear()
        self._ready.clear()
        self._queued.clear()
        self._draining.clear()

    def wake(self) -> None:
        """Schedules a round for the next iteration of the loop, if any link waits for one."""
        if not self._scheduled and (self._ready or self._draining):
            self._scheduled = True
            self._loop.call_soon(self._round)

    def statistics(self) -> dict[str, int]:
        """How many links receive, and how many of them wait for messages."""
        return {"links": len(self._links), "ready_links": len(self._ready)}

    def _round(self) -> None:
        self._scheduled = False
        ready = self._ready
        touched: dict[SenderLink, None] = {}
        left = ROUND_MESSAGES
        dry = not self.queue.has_available
        while ready and left > 0 and not dry:
            sender_link = ready.popleft()
            self._queued.discard(sender_link)
            if not sender_link.is_ready:
                continue
            try:
                count = sender_link.deliver(min(_SHARE if ready else _SHARE_ALONE, left))
            except IsthmusError as error:
                self._refuse(sender_link, error)
                touched[sender_link] = None
                continue
            except Exception as fault:  # noqa: BLE001 - a fault of ours costs this link, and the others not their round
                _log.exception("receiver detached by a fault: entity=%r", sender_link.path)
                self._refuse(sender_link, fault)
                touched[sender_link] = None
                continue
            dry = not count or not self.queue.has_available
            left -= count
            touched[sender_link] = None
            if sender_link.is_ready:
                # A link that was served goes to the end; one that found nothing keeps its position.
                (ready.appendleft if dry else ready.append)(sender_link)
                self._queued.add(sender_link)
        for sender_link in list(self._draining):
            if dry or sender_link not in self._queued:
                del self._draining[sender_link]
                sender_link.drain()
                touched[sender_link] = None
        for sender_link in touched:
            sender_link.flush()
        if not dry:
            self.wake()

    def _refuse(self, sender_link: SenderLink, error: Exception) -> None:
        self.remove(sender_link)
        sender_link.when_sent(lambda: self._detach(sender_link, error))

    @staticmethod
    def _detach(sender_link: SenderLink, error: Exception) -> None:
        _log.warning("receiver detached: entity=%r condition=%s", sender_link.path, refusal(error).condition)
        sender_link.close()
        sender_link.detach(error)
        sender_link.flush()
