"""A system that receives messages by requests, as a target on the port.

What it is: the copies, their order, and the answers as events of the delivery machine. What it is not: the decision what to send when
(`isthmus.bridge.delivery.delivery`), or the requests (`threads`, and the requester of a kind).

Invariants:
    I1. Ordinals of outcomes are those of the present connection, from 0, in the order of sending.
    I2. An answer is reported only after the system has given it; messages without answer are given up when the connection is lost.
    I3. A system that answers nothing for `stall_seconds` is lost.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from isthmus.bridge.delivery_event import Granted, Lost, Opened, Send
from isthmus.bridge.port import Copies, TargetEvent
from isthmus.bridge.refusal import Refusal, RefusalKind
from isthmus.connectors.copier import Copier, CopyOptions, SourceIsTargetError
from isthmus.connectors.end_pool import EndPool
from isthmus.connectors.flight import Flight
from isthmus.connectors.request.requester import Requester
from isthmus.connectors.request.threads import RequestThreads
from isthmus.errors import InvalidArgumentError

__all__ = ["RequestPool", "RequestTarget"]

# Messages that wait for a thread; enough that no thread waits for the loop.
CREDIT = 1000


class RequestPool(EndPool):
    """The targets of one process.

    Attributes:
        pauses: until when systems asked for a pause, by identity and entity.
    """

    def __init__(self) -> None:
        super().__init__()
        self.pauses: dict[tuple[str, str], float] = {}


class RequestTarget:
    """One route's target.

    Args:
        pool: the pool of the target.
        key: its key in the pool.
        requester: makes the requester of one connection.
        copying: how copies are made.
        origin_identity: identity of the namespace from which the messages are read; empty where unknown.
        parallel: requests in flight at most; with more than one, order is not kept.
        stall_seconds: how long no answer may arrive.
    """

    def __init__(
        self,
        pool: RequestPool,
        key: int,
        requester: Callable[[], Requester],
        *,
        copying: CopyOptions,
        origin_identity: str,
        parallel: int,
        stall_seconds: float,
    ) -> None:
        self._pool = pool
        self._key = key
        self._make_requester = requester
        self._copying = copying
        self._origin_identity = origin_identity
        self._parallel = parallel
        self._stall_seconds = stall_seconds
        self._entity = ""
        self._copier: Copier | None = None
        self._threads: RequestThreads | None = None
        self._flight = Flight(CREDIT)
        self._is_open = self._is_closed = False

    def open(self) -> None:
        """Begins to connect."""
        if self._is_closed:
            return
        self._disconnect()
        requester = self._make_requester()
        self._entity = requester.entity
        self._threads = RequestThreads(requester, self._parallel, lambda: self._pool.mark(self._key), self._pool.pauses)
        self._threads.start()

    def poll(self, now: float) -> Sequence[TargetEvent]:
        """The events since the last call."""
        threads = self._threads
        if threads is None:
            return ()
        events: list[TargetEvent] = []
        lost = threads.lost  # read before the answers: those before the failure are reported
        if not self._is_open and threads.identity is not None and lost is None:
            try:
                if self._copier is None:
                    self._copier = Copier(self._copying, self._entity, self._origin_identity, threads.identity)
            except SourceIsTargetError as error:
                lost = Refusal(RefusalKind.FATAL, "", str(error))
            else:
                self._is_open = True
                self._flight = Flight(CREDIT)
                events += (Opened(), Granted(CREDIT))
        if self._is_open:
            count = self._flight.credit
            events += self._flight.answered(*threads.take(), now)
            if self._flight.credit != count:
                events.append(Granted(self._flight.credit))
            if lost is None and now >= self._stalls_at(threads):
                text = f"'{self._entity}': no answer for {self._stall_seconds:g} s"
                lost = Refusal(RefusalKind.UNKNOWN, "", text)
        if lost is not None:
            events += self._flight.lost(lost)
            self._disconnect()
            events.append(Lost(lost))
        return events

    def deadline(self, now: float) -> float:
        """When `poll` has work even without events."""
        return math.inf if self._threads is None else self._stalls_at(self._threads)

    def copies(self, data: bytes, offsets: Sequence[int], now_ms: int) -> Copies:
        """The copies of messages as this target accepts them.

        Raises:
            InvalidArgumentError: the target was never open.
        """
        if self._copier is None:
            raise InvalidArgumentError("copies are made for a target that has answered; wait for Opened")
        return self._copier.copies(data, offsets, now_ms)

    def send(self, send: Send) -> None:
        """Queues deliveries; after a lost connection it does nothing, and `poll` reports the loss."""
        if self._threads is None or not self._is_open:
            return
        now = time.monotonic()
        for group in (send.payloads,) if send.is_envelope else ((payload,) for payload in send.payloads):
            self._threads.send(self._flight.sent(len(group), now), group)

    def close(self) -> None:
        """Closes it."""
        self._is_closed = True
        self._disconnect()
        self._pool.unmark(self._key)

    def _stalls_at(self, threads: RequestThreads) -> float:
        return max(self._flight.since, threads.waits_until) + self._stall_seconds

    def _disconnect(self) -> None:
        threads, self._threads = self._threads, None
        self._is_open = False
        self._flight = Flight(CREDIT)
        if threads is not None:
            threads.stop()
            self._pool.add_leaving(threads)
