"""A listener as a source on the port.

What it is: messages that the thread has read of the spool, as events, within the credit; and the owner's settlements. What it is not: the listener
(`listener`), or the spool (`inbox`, `outgoing`).

Invariants:
    I1. Nothing is delivered beyond the credit.
    I2. No message is deleted from the spool before the owner has settled it.
    I3. After `close` it reports nothing more.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from isthmus.bridge.delivery_event import Disposition
from isthmus.bridge.port import Arrived, Drained, Exhausted, SourceEvent, SourceLost
from isthmus.connectors.end_pool import EndPool
from isthmus.connectors.listen.door import Read
from isthmus.connectors.listen.option import ListenOptions
from isthmus.connectors.listen.threads import ListenThread

__all__ = ["ListenSource"]


class ListenSource:
    """One route's source.

    Args:
        pool: the pool that it belongs to.
        key: its key in the pool.
        options: where it listens, and how.
        read: parses a request into messages.
        only_present: deliver only messages that exist when it is first opened.
        handshakes: whether Event Grid's subscriptions are confirmed.
    """

    def __init__(
        self,
        pool: EndPool,
        key: int,
        options: ListenOptions,
        *,
        read: Read,
        only_present: bool,
        handshakes: bool = False,
    ) -> None:
        self._pool = pool
        self._key = key
        self._options = options
        self._thread = ListenThread(
            options, read, lambda: pool.mark(key), only_present=only_present, handshakes=handshakes
        )
        self._is_draining = self._is_closed = False
        self._refused = ""

    @property
    def port(self) -> int:
        """The port of the listener; 0 before it was opened."""
        return self._thread.port

    @property
    def clock_offset_ms(self) -> int | None:
        """The offset of this machine's clock."""
        return round((time.time() - time.monotonic()) * 1000)

    def open(self) -> None:
        """Begins to listen."""
        if not self._is_closed:
            self._thread.open()

    def poll(self, now: float) -> Sequence[SourceEvent]:
        """The events since the last call."""
        if self._is_closed:
            return ()
        state_events, messages = self._thread.take()
        events: list[SourceEvent] = [each for each in state_events if not isinstance(each, Exhausted)]
        if messages:
            events.append(Arrived([position for position, _ in messages], [message for _, message in messages]))
        events += [each for each in state_events if isinstance(each, Exhausted)]
        if self._is_draining:
            self._is_draining = False
            events.append(Drained())
        if self._refused:
            events.append(SourceLost(self._refused, is_fatal=True))
            self._refused = ""
        if any(type(each) is SourceLost for each in events):
            self._thread.grant(0)
        return events

    def deadline(self, now: float) -> float:
        """Infinite: the thread wakes the pool."""
        return math.inf

    def grant(self, credit: int) -> None:
        """Sets the credit."""
        self._is_draining = False
        self._thread.grant(credit)
        self._pool.mark(self._key)  # messages may have been read already

    def drain(self) -> None:
        """Withdraws the credit."""
        self._thread.grant(0)
        self._is_draining = True
        self._pool.mark(self._key)

    def settle(self, first: int, last: int, disposition: Disposition | None = None) -> None:
        """Settles delivered positions."""
        kind = "complete" if disposition is None else disposition.kind
        if kind == "dead-letter":
            self._thread.ask(first, last, "set-aside", disposition)
        elif kind in ("complete", "abandon"):
            self._thread.ask(first, last, "release" if kind == "abandon" else kind)
        else:
            self._refused = f"'{self._options.entity}': there is no disposition '{kind}' here; choose another one"
            self._thread.ask(first, last, "release")
            self._pool.mark(self._key)

    def release(self, first: int, last: int) -> None:
        """Releases delivered positions."""
        self._thread.ask(first, last, "release")

    def close(self) -> None:
        """Closes it; settlements are written in the background."""
        if self._is_closed:
            return
        self._is_closed = True
        self._pool.unmark(self._key)
        self._thread.stop()
        if self._thread.ident is not None:
            self._pool.add_leaving(self._thread)

    @property
    def has_left(self) -> bool:
        """Whether settlements are written, and the spool is released."""
        return self._is_closed and not self._thread.is_alive()
