"""A system that is polled for messages, as a source on the port.

What it is: the messages that the threads have received, as events, within the credit; and the owner's settlements. What it is not: the
requests (`threads`).

Invariants:
    I1. Nothing is delivered beyond the credit.
    I2. Nothing is settled at the system but by the owner, except messages that are unreadable or were delivered too often: they are set aside.
    I3. After `close` it reports nothing more.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from isthmus.bridge.delivery_event import Disposition
from isthmus.bridge.port import Arrived, Drained, Exhausted, SourceEvent, SourceLost
from isthmus.connectors.end_pool import EndPool
from isthmus.connectors.pull.puller import Puller
from isthmus.connectors.pull.threads import PullThreads

__all__ = ["PullSource"]


class PullSource:
    """One route's source.

    Args:
        pool: the pool of the source.
        key: its key in the pool.
        puller: calls the system.
        parallel: settlements in flight at most.
        most: messages locked at most.
        pause_seconds: how long to wait at most before an empty source is polled again.
        only_present: deliver only messages that exist when it is first opened.
    """

    def __init__(
        self,
        pool: EndPool,
        key: int,
        puller: Puller,
        *,
        parallel: int,
        most: int,
        pause_seconds: float,
        only_present: bool,
    ) -> None:
        self._pool = pool
        self._key = key
        self._puller = puller
        self._threads = PullThreads(
            puller,
            parallel=parallel,
            most=most,
            pause_seconds=pause_seconds,
            only_present=only_present,
            wake=lambda: pool.mark(key),
        )
        self._is_draining = self._is_closed = False
        self._refused = ""

    @property
    def clock_offset_ms(self) -> int | None:
        """From the system's last answer; this machine's offset before the first one."""
        offset_ms = self._puller.clock_offset_ms
        return round((time.time() - time.monotonic()) * 1000) if offset_ms is None else offset_ms

    def open(self) -> None:
        """Begins to connect."""
        if not self._is_closed:
            self._threads.open()

    def poll(self, now: float) -> Sequence[SourceEvent]:
        """The events since the last call."""
        if self._is_closed:
            return ()
        state_events, locked_messages = self._threads.take()
        # The end of the existing messages is reported after the last of them.
        events: list[SourceEvent] = [each for each in state_events if not isinstance(each, Exhausted)]
        if locked_messages:
            events.append(
                Arrived([locked.position for locked in locked_messages], [locked.message for locked in locked_messages])
            )
        events += [each for each in state_events if isinstance(each, Exhausted)]
        if self._is_draining:
            self._is_draining = False
            events.append(Drained())
        if self._refused:
            events.append(SourceLost(self._refused, is_fatal=True))
            self._refused = ""
        if any(type(each) is SourceLost for each in events):
            self._threads.grant(0)
        return events

    def deadline(self, now: float) -> float:
        """Infinite: the threads wake the pool."""
        return math.inf

    def grant(self, credit: int) -> None:
        """Sets the credit."""
        self._is_draining = False
        self._threads.grant(credit)
        self._pool.mark(self._key)  # messages may have been received already

    def drain(self) -> None:
        """Withdraws the credit."""
        self._threads.grant(0)
        self._is_draining = True
        self._pool.mark(self._key)

    def settle(self, first: int, last: int, disposition: Disposition | None = None) -> None:
        """Settles delivered positions."""
        if disposition is None or disposition.kind == "complete":
            self._threads.settle(first, last)
        elif disposition.kind == "abandon":
            self._threads.release(first, last)
        elif disposition.kind == "dead-letter":
            self._threads.settle(first, last, disposition)
        else:
            self._refused = (
                f"'{self._puller.entity}': there is no disposition '{disposition.kind}' here; choose another one"
            )
            self._threads.release(first, last)
            self._pool.mark(self._key)

    def release(self, first: int, last: int) -> None:
        """Releases delivered positions."""
        self._threads.release(first, last)

    def close(self) -> None:
        """Closes it; settled messages are completed in the background, the others released."""
        if self._is_closed:
            return
        self._is_closed = True
        self._pool.unmark(self._key)
        self._threads.stop()
        if self._threads.has_started:
            self._pool.add_leaving(self._threads)

    @property
    def has_left(self) -> bool:
        """Whether settled messages are completed: a reader that begins earlier would receive them again."""
        return self._is_closed and not self._threads.is_alive()
