"""The driver's side of a streaming read.

What it is: the queries that decide whether a batch is started, and the data of Spark's progress. What it is not: Spark
(`source`), or the settling of batches (`batch.settlement`).

Invariants:
    I1. A query finds waiting messages and locks none; it blocks no longer than `look_seconds`, or, in a run with an end, than
        another receiver's lock can last.
    I2. After a batch that moved nothing past the first message, the next query is delayed, with growing delays.
    I3. A run with an end whose batches are not read at all ends with an error that says so.
    I4. An entity that nothing can be received from, a topic e.g., is an error at once: a peek finds it empty.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any

from isthmus.bridge.host.channel import sweep
from isthmus.clock import SystemClock
from isthmus.connectors.servicebus.batch.error import BatchUnreadError
from isthmus.connectors.servicebus.connect import endpoint_of, open_client
from isthmus.connectors.servicebus.head import (
    FRAGMENT_BITS,
    PeekedMessage,
    first_waiting,
    last_sequence,
    peeked_message,
    spans,
    waiting_at_most,
)
from isthmus.connectors.servicebus.option import SourceOptions
from isthmus.connectors.servicebus.spark.error import HeldElsewhereError
from isthmus.errors import IsthmusError
from isthmus.transport import Client, Management, Receiver

__all__ = ["OffsetPlanner"]

FIRST_QUERY_SECONDS = 0.05
# The delay after a query that found only messages locked by others, or a batch that moved nothing; it grows.
FRUITLESS_SECONDS = 0.5
FRUITLESS_LIMIT_SECONDS = 30.0
FRUITLESS_NOW_SECONDS = 3.0
# The longest LockDuration is 5 minutes: a longer lock belongs to a running receiver.
HELD_SECONDS = 310.0
# One batch may be left unread: a sink skips those that it has.
UNREAD_BATCHES = 3
EVERYTHING = 1 << 62
# A message that expired by this machine's clock less than that ago may not have by the broker's. A batch without messages costs
# little; a message for which no batch is started is lost.
CLOCK_SLACK_MS = 120_000


class OffsetPlanner:
    """The state of a streaming read during the whole query.

    Args:
        options: the read's options.

    Attributes:
        through: with the trigger availableNow, the last sequence number available; else 0.
    """

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self.path = options.entity.strip("/")
        self._clock = SystemClock()
        sweep()
        self._client: Client | None = None
        self._management: Management | None = None
        self.through = 0
        self._until_ms = EVERYTHING
        self._available_now = False
        self._batch = 0
        self._last_found: PeekedMessage | None = None
        self._fruitless = 0
        self._not_before = 0.0
        self._next_query = 0.0
        self._pause = FIRST_QUERY_SECONDS
        self._found_at = 0.0
        self._tail = 0
        self._unread = 0
        self._is_receivable = False

    # ---- queries

    def latest(self, batch: int, *, was_read: bool = True) -> int:
        """The number of the next batch if a message waits, else the same.

        Args:
            batch: the last batch.
            was_read: whether a reader of it has run.

        Raises:
            BatchUnreadError: nothing has read the last batches of a run with an end.
            HeldElsewhereError: the first message of a run with an end is not delivered.
            IsthmusError: the namespace is unreachable, or refuses.
        """
        if batch != self._batch:
            self._unread = 0 if was_read else self._unread + 1
        self._batch = batch
        if self._available_now and self.through == 0:
            return batch
        limit = time.monotonic() + self.options.look_seconds
        while True:
            now = time.monotonic()
            if now >= max(self._not_before, self._next_query):
                if self._query():
                    self._pause = FIRST_QUERY_SECONDS
                    return batch + 1
                self._next_query = now + min(self._pause, self.options.look_pause_seconds)
                self._pause = min(self._pause * 2, self.options.look_pause_seconds)
            if self._available_now:
                if self._last_found is None:
                    return batch
                limit = self._not_before + 1.0  # locked messages become available, or an error names them
            if now >= limit:
                return batch
            wait = min(max(self._not_before, self._next_query), limit) - time.monotonic()
            time.sleep(max(0.01, wait))

    def _query(self) -> bool:
        through = self.through or EVERYTHING
        now_ms = self._clock.wall_ms() - CLOCK_SLACK_MS
        found = first_waiting(self._peek, now_ms, through, until_ms=self._until_ms)
        if found is None:
            self._last_found, self._fruitless = None, 0
            return False
        now = time.monotonic()
        if self._last_found is not None and found.sequence == self._last_found.sequence:
            # The previous batch moved nothing past this message: another receiver has it locked.
            self._fruitless += 1
            longest = FRUITLESS_NOW_SECONDS if self._available_now else FRUITLESS_LIMIT_SECONDS
            delay = min(longest, FRUITLESS_SECONDS * 2 ** min(self._fruitless, 10))
            if self._available_now and self._unread >= UNREAD_BATCHES:
                raise BatchUnreadError(self.path, self._batch, self._unread)
            if self._available_now and now - self._found_at > HELD_SECONDS:
                raise HeldElsewhereError(self.path, found.sequence, HELD_SECONDS)
            self._not_before = now + delay
        else:
            self._fruitless = self._unread = 0
            self._found_at = now
        self._last_found = found
        return True

    def _peek(self, start: int, count: int) -> list[bytes]:
        for attempt in (0, 1):
            management = self._management
            if management is None or self._client is None or self._client.error is not None:
                management = self._connect()
            try:
                return management.peek(start, count)
            except IsthmusError as error:
                self._disconnect()
                if attempt or not error.retryable:
                    raise
        return []

    def _connect(self) -> Management:
        self._disconnect()
        self._client = open_client(endpoint_of(self.options), self.path, f"isthmus-look-{os.getpid()}")
        if not self._is_receivable:
            Receiver(self._client, self.path).wait_attached().close()
            self._is_receivable = True
        self._management = Management(self._client, self.path)
        return self._management

    def _disconnect(self) -> None:
        if self._client is not None:
            self._client.abandon()
        self._client = self._management = None

    def prepare_available_now(self) -> None:
        """Notes the last existing sequence number: no later message is moved in this run."""
        self._available_now = True
        self.through = last_sequence(self._peek, 0)
        if self.through >> FRAGMENT_BITS:  # later messages of a lower fragment are recognised by their time
            firsts = [peeked_message(message).sequence for message in self._peek(0, 1)]
            lasts = [last for first in firsts for _, last in spans(self._peek, first, self.through)]
            tails = [peeked_message(message).enqueued_ms for last in lasts for message in self._peek(last, 1)]
            self._until_ms = max(tails, default=0)

    @property
    def batch_through(self) -> int:
        """The last sequence number of a batch; of a partitioned entity a batch ends when no message arrives, because
        the last number may arrive first.
        """
        return EVERYTHING if self.through >> FRAGMENT_BITS else self.through

    def peeked_message(self) -> dict[str, Any]:
        """Data for Spark's progress: the present batch and the waiting messages at its end."""
        progress: dict[str, Any] = {"batch": self._batch, "entity": self.path}
        with contextlib.suppress(IsthmusError):
            head = first_waiting(self._peek, self._clock.wall_ms())
            self._tail = last_sequence(self._peek, self._tail)
            progress["waiting_at_most"] = (
                waiting_at_most(self._peek, head.sequence, self._tail) if head is not None else 0
            )
            progress["lag_ms"] = max(0, self._clock.wall_ms() - head.enqueued_ms) if head is not None else 0
        return progress

    def close(self) -> None:
        """The query has ended."""
        if self._client is not None:
            self._client.close(1.0)
