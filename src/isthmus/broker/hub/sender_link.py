"""Links on which consumers receive events from a partition.

What it is: reads from the receiver's position as far as the client's credit allows, and at the partition's end waits for
new events. What it is not: settlement; events are sent settled, and reading removes nothing.
Spec: docs/explanation/protocol.md, Links, Event Hubs.

Invariants:
    I1. One iteration sends at most `TURN_EVENTS` events and about `TURN_BYTES`; other links are served in between.
    I2. A link without credit, or at the partition's end, costs nothing until that changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from isthmus.amqp import Link
from isthmus.broker.hub.metric import with_metric
from isthmus.broker.link.handler import LinkHandler, LinkUse
from isthmus.broker.security.access import Access
from isthmus.broker.security.grant import Right
from isthmus.clock import Clock
from isthmus.entities.hub import Cursor, EventHub
from isthmus.errors import IsthmusError

__all__ = ["TURN_BYTES", "TURN_EVENTS", "HubSenderLink"]

TURN_EVENTS = 512
TURN_BYTES = 1 << 20
# Nothing refers to a settled delivery later: one tag is enough for all.
_TAG = b"\0\0\0\0"


class _Carrier(Protocol):
    """The connection below a link."""

    @property
    def is_writable(self) -> bool:
        """Whether it takes more bytes now."""
        ...

    def flush(self) -> None:
        """Send what was written, now."""
        ...


class HubSenderLink(LinkHandler):
    """One link on which a consumer receives.

    Args:
        link: whose sender we are, accepted.
        path: the address as the client wrote it.
        hub: whose partition it is.
        cursor: the receiver's position.
        carrier: the connection.
        expel: detaches the link with an error.
        leave: called once when the link is gone.
        metric_clock: wall time, for a receiver that asked for the partition's end with every event; else None.

    Attributes:
        name: of the receiver, for the errors of other receivers.
        epoch: the owner level; None for a receiver without one.
    """

    use = LinkUse("consumer", "EventHub")

    def __init__(
        self,
        link: Link,
        path: str,
        hub: EventHub,
        cursor: Cursor,
        carrier: _Carrier,
        *,
        name: str,
        epoch: int | None,
        expel: Callable[[IsthmusError], None],
        leave: Callable[[HubSenderLink], None],
        metric_clock: Clock | None = None,
    ) -> None:
        self.link = link
        self.path = path
        self.name = name
        self.epoch = epoch
        self.expel = expel
        self.closed = False
        self.grants = 0
        self._hub = hub
        self._cursor = cursor
        self._carrier = carrier
        self._leave = leave
        self._metric_clock = metric_clock
        self._scheduled = False
        self._delivered = 0
        self._loop = asyncio.get_running_loop()
        cursor.partition.add_listener(self.offer)

    def check_open(self) -> None:
        """Raises if the link cannot continue.

        Raises:
            IsthmusError: the hub was deleted, or is disabled for receiving.
        """
        self._hub.check_receivable()

    def on_credit(self) -> None:
        self.grants += 1
        self.offer()

    def on_writable(self) -> None:
        self.offer()

    def is_permitted(self, access: Access) -> bool:
        return access.permits(self.path, Right.LISTEN)

    @property
    def activity(self) -> object:
        """A value that changes whenever the client gets events or grants credit."""
        return self._delivered, self.grants

    def offer(self) -> None:
        """There is more to read, or credit, or room to write: sends if all three are present."""
        if not self._scheduled and not self.closed and (self._is_ready or self.link.drain):
            self._scheduled = True
            self._loop.call_soon(self._turn)

    def close(self) -> None:
        """The link is gone."""
        if not self.closed:
            self.closed = True
            self._cursor.partition.remove_listener(self.offer)
            self._leave(self)

    def statistics(self) -> dict[str, int]:
        """Events delivered so far, and the sequence number of the next one."""
        return {"delivered": self._delivered, "next_sequence_number": self._cursor.next}

    @property
    def _is_ready(self) -> bool:
        return self.link.sendable > 0 and self._carrier.is_writable

    def _turn(self) -> None:
        self._scheduled = False
        if self.closed or self.link.detached or self.link.amqp_session.ended:
            return
        try:
            events = self._cursor.take(min(self.link.sendable, TURN_EVENTS), TURN_BYTES) if self._is_ready else []
        except IsthmusError as error:  # the disk cannot be read: the client gets the error, and attaches again
            self.expel(error)
            return
        if events:
            if self._metric_clock is not None:
                events = with_metric(events, self._cursor.partition.committed, self._metric_clock.wall_ms())
            self.link.send_many(events, [_TAG] * len(events), settled=True)
            self._delivered += len(events)
            self._hub.delivered_total += len(events)
        elif self.link.drain and (self._is_ready or (not self.link.credit and self._carrier.is_writable)):
            # Where the wire or the session's window is full there may be more events; a later iteration checks.
            self.link.drained()
        self._carrier.flush()
        if events:
            self.offer()
