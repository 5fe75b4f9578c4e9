"""Links on which clients receive messages from a queue, subscription or dead-letter queue.

What it is: takes messages from the entity as far as the client's credit allows, and sends them. What it is not: the choice between links
(`isthmus.broker.link.dispatch`), or the settlement of deliveries (`isthmus.broker.link.settlement`).
Spec: docs/explanation/protocol.md, Links.

Invariants:
    I1. Messages taken without a lock are sent only after their deletion is durable.
    I2. Messages are sent in the order in which they were taken, large ones in parts.
    I3. Where this side ends the link, messages that were deleted for the client are sent before.
    I4. A large message is deleted for the client only after its body has been read to the end: it is locked meanwhile. Nothing is deleted
        behind it before it has been sent, since the body may be unreadable all the same.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from isthmus.amqp import Link
from isthmus.broker.large import LARGE_BYTES, RETRIES, Stream, check_bodies
from isthmus.broker.link.condition import amqp_error
from isthmus.broker.link.coordinator import Transactions
from isthmus.broker.link.departure import Owed
from isthmus.broker.link.handler import LinkHandler, LinkUse, Rounds
from isthmus.broker.link.request import ToTheEnd, Way
from isthmus.broker.link.settlement import Settlement
from isthmus.broker.security.access import Access
from isthmus.broker.security.grant import Right
from isthmus.entities import Acquired, Payload
from isthmus.entities.port import MessageSource
from isthmus.entities.storage.blob import Large
from isthmus.errors import IsthmusError

__all__ = ["Carrier", "SenderLink"]

_log = logging.getLogger(__name__)

_PRESETTLED = 1
_TURN_BYTES = 1 << 20  # of the messages of one iteration: large ones must not fill the memory of the connection
_EXPECTED_BYTES = 16 * 1024  # of a message, before the first one was seen


class Carrier(Way, Protocol):
    """The connection below a link that receives."""

    @property
    def unsent_bytes(self) -> int:
        """The number of bytes that wait to be sent."""
        ...

    def offer(self, sender_link: SenderLink) -> None:
        """A receiving link can take messages again."""
        ...

    def offer_later(self, sender_link: SenderLink) -> None:
        """As `offer`, after a pause."""
        ...


class SenderLink(LinkHandler):
    """One link on which a client receives.

    Args:
        link: whose sender we are, accepted.
        path: the entity as the client wrote it.
        queue: the source of the messages.
        carrier: the connection.
        transactions: of the connection.
    """

    owed: Owed
    settlement_type: type[Settlement] = Settlement
    use = LinkUse("consumer", "Message")

    def __init__(
        self,
        link: Link,
        path: str,
        queue: MessageSource,
        carrier: Carrier,
        transactions: Transactions,
    ) -> None:
        self.link = link
        self.path = path
        self.queue = queue
        self.closed = False
        self.grants = 0
        self._carrier = carrier
        self._settlement = self.settlement_type(link, path, queue, transactions, carrier.touch)
        self.owed = self._settlement.owed
        self._deletes = link.snd_settle_mode == _PRESETTLED
        self._reserved = self._delivered = 0
        self._is_large_reserved = False
        self._unchecked = b""  # the lock of a large message whose body is being read, before it is deleted
        self._on_sent_all: Callable[[], None] | None = None  # ends the link, once all deleted messages have been sent
        self._mean_bytes = _EXPECTED_BYTES
        self._stream: Stream | None = None
        self._behind: deque[tuple[Payload, bytes]] = deque()  # taken, and waiting for a large message before them

    @property
    def is_ready(self) -> bool:
        """Whether messages could be sent now."""
        return not self.closed and self._on_sent_all is None and self._room > 0 and self._carrier.is_writable

    def check_open(self) -> None:
        """Raises if the link cannot continue.

        Raises:
            IsthmusError: the entity was deleted, or is disabled for receiving.
        """
        self.queue.check_receivable()

    def on_credit(self) -> None:
        self.grants += 1
        if self._deletes:  # what waited for the session's window goes to the socket only now
            self._carrier.touch_awaited()
        self.on_writable()

    def on_writable(self) -> None:
        self.resume()
        self.offer()

    def offer(self) -> None:
        """There is credit, a drain, or room to write: takes part in the rounds."""
        self._carrier.offer(self)

    def is_permitted(self, access: Access) -> bool:
        return access.permits(self.path, Right.LISTEN)

    @property
    def activity(self) -> object:
        """A value that changes whenever the client gets messages or parts of them, settles, or grants credit."""
        left_bytes = 0 if self._stream is None else self._stream.left_bytes
        return self._delivered, len(self._settlement.tokens), self.grants, left_bytes

    @property
    def _room(self) -> int:
        is_large_first = self._stream is not None or self._behind or self._is_large_reserved or self._unchecked
        if self._deletes and is_large_first:  # I4
            return 0
        return self.link.sendable - self._reserved - len(self._behind)

    @property
    def owes(self) -> bool:
        """Whether messages that were deleted for the client are still to be sent: those in the socket's buffer end with the process."""
        return self._is_leaving or (self._deletes and self._carrier.unsent_bytes > 0)

    @property
    def _is_leaving(self) -> bool:
        """Whether what is being deleted for the client has not left yet: parts of large messages, and what waits behind them, or for the
        session's window, included.
        """
        is_held_up = self._stream is not None or bool(self._behind) or self.link.amqp_session.is_waiting(self.link)
        return self._reserved > 0 or (self._deletes and is_held_up)

    def deliver(self, limit: int) -> int:
        """Sends up to `limit` messages; returns how many were taken, 0 if the queue has none.

        Raises:
            IsthmusError: the entity was deleted, or is disabled for receiving.
        """
        count = max(1, min(limit, self._room, _TURN_BYTES // self._mean_bytes))
        has_large = self.queue.has_large
        if self._deletes and not has_large:
            box: list[Acquired] = []
            deleted = self.queue.acquire(
                count,
                lock=False,
                on_durable=lambda: self._send_deleted(box),
                on_failed=lambda _: self._not_deleted(box),
            )
            return 0 if deleted is None else self._reserve(box, deleted)
        acquired = self.queue.acquire(1 if has_large else count)
        if acquired is None:
            return 0
        if self._deletes:
            self._check(acquired)
        else:
            self._send(acquired)
        return len(acquired.tags)

    def drain(self) -> None:
        """Answers a drain: there is nothing more to send, so the remaining credit is used up.

        Where the wire or the session's window is full there may be more; `on_writable` and `on_credit` continue then.
        """
        link = self.link
        is_sending = self._reserved or self._behind or self._unchecked or link.is_sending
        is_held_up = link.credit > 0 and not (self._carrier.is_writable and link.amqp_session.send_window > 0)
        if link.drain and not is_sending and not is_held_up:
            link.drained()

    def resume(self) -> None:
        """The connection or the session has room again."""
        if self._stream is not None:
            self._stream.pump()
        elif self._behind and not self.closed:
            self._send_behind()
        self._report_sent()

    def flush(self) -> None:
        """Sends queued bytes."""
        self._carrier.flush()

    def on_disposed(self, first: int, last: int, state: Any, settled: bool) -> None:
        """The client disposed of deliveries first to last."""
        self._settlement.dispose(first, last, state, settled)

    def on_tick(self, now: float) -> None:
        if self._unchecked:  # reading may take longer than the lock lasts
            with suppress(IsthmusError):
                self.keep(self._unchecked)

    def keep(self, token: bytes) -> None:
        """Renews the lock of a message whose body is being read.

        Raises:
            IsthmusError: the entity or the session has ended.
        """
        self.queue.renew([token])

    def close(self) -> None:
        """The link is gone; the locks stay."""
        self.closed = True
        self._on_sent_all = None
        self._give_back()
        self._settlement.close()
        self._behind.clear()
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def withdraw(self, rounds: Rounds) -> None:
        rounds.remove_sender_link(self)

    def when_sent(self, run: Callable[[], None]) -> None:
        """Takes no more messages, and calls once those being deleted for the client have been sent (I3); not after `close`."""
        if self._is_leaving and not self.closed:
            self._on_sent_all = run
        else:
            run()

    def detach(self, error: Exception) -> None:
        """Ends the link from this side, after its outstanding outcomes."""
        self.link.begin_detach(amqp_error(error))
        self.owed.when_none(self.link.finish_detach)

    def statistics(self) -> dict[str, int]:
        """Messages delivered so far, and how many of them wait for a disposition."""
        return {"delivered": self._delivered, "unsettled": len(self._settlement.tokens)}

    def _check(self, locked: Acquired) -> None:
        """Deletes a locked message for the client, once its body has been read (I4)."""
        payload, token = locked.payloads[0], locked.tags[0]
        if not isinstance(payload, Large):
            self._delete(token)
            return
        self._unchecked = token
        check_bodies(self._carrier.large, [payload.blob], self._checked, retries=RETRIES)

    def _give_back(self) -> None:
        """The message whose body is being read goes to another client at once."""
        token, self._unchecked = self._unchecked, b""
        if token:
            with suppress(IsthmusError):  # the entity or the session has ended
                self.queue.release([token])

    def _checked(self, unreadable: IsthmusError | None) -> None:
        is_ending = self.closed or self.link.detached or self.takes_no_more or self._on_sent_all is not None
        if is_ending or not self.link.credit:
            self._give_back()
            self.offer()
            return
        token, self._unchecked = self._unchecked, b""
        if unreadable is None:
            try:
                self.keep(token)
                self._delete(token)
            except IsthmusError as error:
                self.when_sent(partial(self._give_up, error, token))
        else:
            self.when_sent(partial(self._give_up, unreadable, token))
        self._carrier.touch()

    def _delete(self, token: bytes) -> None:
        """Deletes a locked message for the client.

        Raises:
            IsthmusError: it cannot be read, or the entity or the session has ended.
        """
        box: list[Acquired] = []
        deleted = self.queue.delete_locked(token, lambda: self._send_deleted(box), lambda _: self._not_deleted(box))
        if deleted is None:  # its lock has ended meanwhile
            self.offer()
        else:
            self._reserve(box, deleted)

    def _reserve(self, box: list[Acquired], deleted: Acquired) -> int:
        box.append(deleted)
        self._reserved += len(deleted.tags)
        self._is_large_reserved = isinstance(deleted.payloads[-1], Large)
        return len(deleted.tags)

    def fail(self, token: bytes) -> None:
        """A message cannot be read: its delivery has failed when its lock ends."""

    def _give_up(self, error: Exception, token: bytes) -> None:
        _log.error("message not sent: entity=%r reason=%s", self.path, error)
        self._behind.clear()
        self.fail(token)
        self.detach(error)
        self._carrier.touch()

    def _send(self, acquired: Acquired) -> None:
        payloads, tags = acquired.payloads, acquired.tags
        count = len(tags)
        size = sum(map(len, payloads))
        self._mean_bytes = size // count + 1
        # A rule's action may have made a message with a body in a file smaller than others.
        is_large = Large in set(map(type, payloads)) or (size > LARGE_BYTES and max(map(len, payloads)) > LARGE_BYTES)
        if is_large or self._stream is not None or self._behind:
            self._behind.extend(zip(payloads, tags, strict=True))
            self._send_behind()
            return
        self._send_now(payloads, tags)  # type: ignore[arg-type]  # none is large

    def _send_behind(self) -> None:
        """Sends waiting messages in order, up to the next large message, whose sending begins."""
        while self._behind and self._stream is None:
            payload, tag = self._behind.popleft()
            # A client may take credit back meanwhile; messages already taken for it are still sent.
            self.link.credit = max(self.link.credit, 1)
            if isinstance(payload, bytes) and len(payload) <= LARGE_BYTES:
                self._send_now([payload], [tag])
                continue
            if self.link.sendable < 1:  # the session's window is closed: no delivery begins until it opens
                self._behind.appendleft((payload, tag))
                return
            way = ToTheEnd(self._carrier) if self._deletes else self._carrier
            on_end = partial(self._on_sent, tag)
            self._stream = stream = Stream(
                self.link, payload, tag, way, self._carrier.large, on_end, settled=self._deletes
            )
            self._delivered += 1
            if not self._deletes:
                self._settlement.tokens[stream.delivery_id] = tag

    def _on_sent(self, tag: bytes, error: IsthmusError | None) -> None:
        """A large message has been sent, or cannot be."""
        self._stream = None
        if self.closed:
            return
        if error is not None:
            self._give_up(error, tag)
        self._send_behind()
        self.offer()
        self._carrier.touch()
        self._report_sent()

    def _send_now(self, payloads: Sequence[bytes], tags: Sequence[bytes]) -> None:
        first = self.link.send_many(payloads, tags, settled=self._deletes)
        self._delivered += len(tags)
        if self._deletes:
            self._carrier.touch_awaited()
        else:
            self._settlement.sent(first, tags)

    def _send_deleted(self, box: list[Acquired]) -> None:
        """Sends messages whose deletion is durable; a client that has disconnected meanwhile loses them, as the mode says."""
        self._unreserve(box)
        if self.closed or self.link.detached or self.link.amqp_session.ended:
            return
        # A client may take credit back while the deletion is synced; messages already taken are still sent.
        self.link.credit = max(self.link.credit, len(box[0].tags))
        self._send(box[0])
        self.drain()
        self._carrier.touch()
        self._report_sent()

    def _not_deleted(self, box: list[Acquired]) -> None:
        """The disk refused: the messages are in the queue again, and are offered to the client, whose credit still waits."""
        self._unreserve(box)
        self._carrier.offer_later(self)
        self._report_sent()

    def _report_sent(self) -> None:
        if self._on_sent_all is not None and not self._is_leaving:
            run, self._on_sent_all = self._on_sent_all, None
            run()

    def _unreserve(self, box: list[Acquired]) -> None:
        if box:
            self._reserved -= len(box[0].tags)
            if isinstance(box[0].payloads[-1], Large):
                self._is_large_reserved = False
