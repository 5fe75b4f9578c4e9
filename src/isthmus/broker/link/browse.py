"""Links on which clients browse: they get copies of messages, which stay unchanged in the entity.

What it is: a source with distribution mode `copy`, as a JMS QueueBrowser attaches it, served as peeks in sequence order:
messages of every state, locked ones included. What it is not: `peek-message` of `$management`, with which the SDKs browse
(`isthmus.broker.management`).
Spec: OASIS AMQP 1.0 3.5.6 (std-dist-mode); Microsoft Learn, "Message browsing".

Invariants:
    I1. Nothing is locked, counted as delivered or removed, whatever the client answers; its outcomes are echoed.
    I2. Each message that exists when the browser reaches its position is sent once, in sequence order.
    I3. A drain is answered after the last message was sent, so that the client knows the end.
"""

from __future__ import annotations

import asyncio
from typing import Any

from isthmus.amqp import Link, section
from isthmus.amqp.performative import Accepted
from isthmus.broker.link.coordinator import Transactions
from isthmus.broker.link.sender_link import Carrier, SenderLink
from isthmus.entities import Acquired, Payload
from isthmus.entities.port import MessageSource
from isthmus.entities.storage.blob import Large
from isthmus.errors import IsthmusError
from isthmus.message.name import SEQUENCE_NUMBER

__all__ = ["BrowseSenderLink"]

# Messages per iteration; a peek also has a limit of bytes.
_AT_ONCE = 64


class BrowseSenderLink(SenderLink):
    """One link on which a client browses; arguments as for `SenderLink`."""

    def __init__(
        self,
        link: Link,
        path: str,
        queue: MessageSource,
        carrier: Carrier,
        transactions: Transactions,
    ) -> None:
        super().__init__(link, path, queue, carrier, transactions)
        self._next = 0
        self._scheduled = False
        self._loop = asyncio.get_running_loop()

    def offer(self) -> None:
        """There is credit, a drain, or room to write: sends messages."""
        if not self._scheduled and not self.closed:
            self._scheduled = True
            self._loop.call_soon(self._turn)

    def on_disposed(self, first: int, last: int, state: Any, settled: bool) -> None:
        """The client is done with copies (I1)."""
        tokens = self._settlement.tokens
        for each in [each for each in tokens if (each - first) & 0xFFFFFFFF <= (last - first) & 0xFFFFFFFF]:
            del tokens[each]
        if not settled:
            count = ((last - first) & 0xFFFFFFFF) + 1
            self._settlement.answer([(first + number) & 0xFFFFFFFF for number in range(count)], state or Accepted())

    def _turn(self) -> None:
        self._scheduled = False
        if self.closed or self.link.detached or self.link.amqp_session.ended or self._stream is not None:
            return
        count = min(self._room, _AT_ONCE) if self._carrier.is_writable else 0
        try:
            payloads = self.queue.peek(self._next, count) if count > 0 else []
        except IsthmusError as error:
            self.close()
            self.detach(error)
            self._carrier.touch()
            return
        if payloads:
            self._next = _sequence_of(payloads[-1]) + 1
            self._send(Acquired([_tag(payload) for payload in payloads], payloads, (), 0))
            self.offer()
        elif self._carrier.is_writable:
            self.drain()
        self._carrier.touch()


def _sequence_of(payload: Payload) -> int:
    front = payload.front if isinstance(payload, Large) else payload
    return int(section.map_value(front, section.locate(front).message_annotations, SEQUENCE_NUMBER))


def _tag(payload: Payload) -> bytes:
    """A delivery tag that is not a lock token of any message."""
    return bytes(8) + _sequence_of(payload).to_bytes(8, "big")
