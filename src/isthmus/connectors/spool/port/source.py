"""A spool as a source on the port: a route forwards the messages that another route, or a query, has written.

What it is: the port's calls, on the loop's thread, and the credit. What it is not: the reading
(`isthmus.connectors.spool.port.thread`), whose invariants hold here, too.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from isthmus.bridge.delivery_event import Disposition
from isthmus.bridge.port import Arrived, Drained, SourceEvent, SourceLost
from isthmus.connectors.end_pool import EndPool
from isthmus.connectors.spool.cursor import Cursor
from isthmus.connectors.spool.option import SourceOptions
from isthmus.connectors.spool.port.thread import LOCK_SECONDS, SpoolSourceThread

__all__ = ["SpoolSource"]


class SpoolSource:
    """One route's source.

    Args:
        pool: the pool that it belongs to.
        key: its key in the pool.
        options: the spool, and how it is read.
        only_present: deliver only messages that exist when it is first opened.
        thread: makes the reading thread.
    """

    def __init__(
        self,
        pool: EndPool,
        key: int,
        options: SourceOptions,
        *,
        only_present: bool = False,
        thread: Callable[..., SpoolSourceThread] = SpoolSourceThread,
    ) -> None:
        self._pool = pool
        self._key = key
        self._options = options
        self._only_present = only_present
        self._make_thread = thread
        self._thread: SpoolSourceThread | None = None
        self._credit = 0
        self._is_draining = self._is_closed = False

    @property
    def clock_offset_ms(self) -> int | None:
        """The offset of this machine's clock: a spool has no clock of its own."""
        return round((time.time() - time.monotonic()) * 1000)

    def open(self) -> None:
        """Begins to open the spool."""
        if self._is_closed:
            return
        before = self._leave()
        self._thread = self._make_thread(
            self._options,
            before.cursor if before is not None else Cursor(),
            before.identity if before is not None else "",
            self._credit,
            lambda: self._pool.mark(self._key),
            only_present=self._only_present,
        )
        self._thread.start()

    def poll(self, now: float) -> Sequence[SourceEvent]:
        """The events since the last call."""
        if self._is_closed or self._thread is None:
            return ()
        events = self._thread.take()
        self._credit = max(0, self._credit - sum(len(each.positions) for each in events if type(each) is Arrived))
        if any(type(each) is SourceLost for each in events):
            self._credit = 0
        if self._is_draining:
            self._is_draining = False
            events.append(Drained())
        return events

    def deadline(self, now: float) -> float:
        """Infinite: the thread reports events."""
        return math.inf

    def grant(self, credit: int) -> None:
        """Sets the credit."""
        self._is_draining = False
        self._credit = credit
        if self._thread is not None:
            self._thread.grant(credit)

    def drain(self) -> None:
        """Withdraws the credit; queued messages precede `Drained`."""
        self._credit = 0
        self._is_draining = True
        if self._thread is not None:
            self._thread.grant(0)
        self._pool.mark(self._key)

    def settle(self, first: int, last: int, disposition: Disposition | None = None) -> None:
        """Settles delivered positions."""
        if self._thread is None:
            return
        if disposition is None or disposition.kind == "complete":
            self._thread.settle(first, last)
        elif disposition.kind == "abandon":
            self._thread.release(first, last)
        else:
            self._thread.set_aside(first, last, disposition)

    def release(self, first: int, last: int) -> None:
        """Releases delivered positions."""
        if self._thread is not None:
            self._thread.release(first, last)

    def close(self) -> None:
        """Closes it."""
        if self._is_closed:
            return
        self._is_closed = True
        self._pool.unmark(self._key)
        self._leave()

    @property
    def has_left(self) -> bool:
        """Whether another source of the spool may open."""
        return self._is_closed and (self._thread is None or not self._thread.is_alive())

    def _leave(self) -> SpoolSourceThread | None:
        thread = self._thread
        if thread is not None:
            thread.stop()
            self._pool.add_leaving(thread)
            if not self._is_closed:
                thread.join(LOCK_SECONDS)
        return thread
