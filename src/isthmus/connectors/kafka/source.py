"""A topic as a source on the port.

What it is: the records that the consumer's thread has read, as events, within the credit; and the owner's settlements. What it is not: the
consumer (`consumer`). docs/how-to/use-kafka.md.

A log has no locks and no dead-letter queue: a released record is read again from its offset; one that is set aside is sent to
the topic `dead_letter_topic`. Without one the source is lost permanently, with an error: the route blocks, and loses nothing.

Invariants:
    I1. Nothing is delivered beyond the credit.
    I2. Nothing is settled at the source but by the owner: no offset of a record without outcome is committed.
    I3. After `close` it reports nothing more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from isthmus.bridge.delivery_event import Disposition
from isthmus.bridge.port import PARTITION_SHIFT, Arrived, Drained, Exhausted, SourceEvent, SourceLost
from isthmus.connectors.end_pool import EndPool
from isthmus.connectors.kafka.consumer.consumer import ConsumerThread
from isthmus.connectors.kafka.option import SourceOptions
from isthmus.connectors.refused import Refused

__all__ = ["KafkaSource"]


class KafkaSource:
    """One route's source.

    Args:
        pool: the pool that it belongs to.
        key: its key in the pool.
        options: the topic, and how it is read.
        only_present: deliver only messages that exist when it is first opened.
        thread: makes the reading thread.
    """

    def __init__(
        self,
        pool: EndPool,
        key: int,
        options: SourceOptions,
        *,
        only_present: bool,
        thread: Callable[..., ConsumerThread] = ConsumerThread,
    ) -> None:
        self._pool = pool
        self._key = key
        self._options = options
        self._thread = thread(options, self._mark, only_present=only_present)
        self._only_present = only_present
        self._is_draining = False
        self._is_closed = False
        self._refused = Refused()

    @property
    def clock_offset_ms(self) -> int | None:
        """The offset of this machine's clock: Kafka reports no time of its own."""
        return round((time.time() - time.monotonic()) * 1000)

    def _mark(self) -> None:
        self._pool.mark(self._key)

    def open(self) -> None:
        """Begins to connect."""
        if not self._is_closed:
            self._thread.open()

    def poll(self, now: float) -> Sequence[SourceEvent]:
        """The events since the last call."""
        if self._is_closed:
            return ()
        state_events, batches = self._thread.take()
        arrived = [Arrived(batch.positions, batch.payloads) for batch in batches]
        # The end of the existing records is reported after the last of them.
        events: list[SourceEvent] = [*(each for each in state_events if not isinstance(each, Exhausted)), *arrived]
        events += [each for each in state_events if isinstance(each, Exhausted)]
        if self._is_draining:
            self._is_draining = False
            self._thread.grant(0)
            events.append(Drained())
        if any(type(each) is SourceLost for each in events):
            self._thread.grant(0)
        if text := self._refused.take(now, self._thread.outstanding):
            events.append(SourceLost(text, is_fatal=True))
        return events

    def deadline(self, now: float) -> float:
        """The thread wakes the pool; a source with refused records is lost after a while, even if not all records are settled."""
        return self._refused.due(now)

    def grant(self, credit: int) -> None:
        """Sets the credit."""
        self._is_draining = False
        self._thread.grant(0 if self._refused.text else credit)
        self._mark()  # records may have been read already

    def drain(self) -> None:
        """Withdraws the credit."""
        self._thread.grant(0)
        self._is_draining = True
        self._mark()

    def settle(self, first: int, last: int, disposition: Disposition | None = None) -> None:
        """Settles delivered positions."""
        if disposition is None or disposition.kind == "complete":
            self._thread.settle(first, last)
            if self._refused.text or self._only_present:
                self._mark()
        elif disposition.kind == "abandon":
            self._thread.release(first, last)
        elif disposition.kind != "dead-letter":
            self._refuse(first, last, f"get the disposition '{disposition.kind}', which a log does not support", "")
        elif not self._thread.set_aside(first, last, disposition):
            reason = f"{disposition.reason}: {disposition.description}".strip(": ")
            hint = "name a dead_letter_topic at the source, or let refusals block"
            self._refuse(first, last, f"be set aside ({reason})", hint)

    def release(self, first: int, last: int) -> None:
        """Releases delivered positions; they are read again."""
        self._thread.release(first, last)

    def close(self) -> None:
        """Closes it; settled records are committed in the background."""
        if self._is_closed:
            return
        self._is_closed = True
        self._pool.unmark(self._key)
        self._thread.stop()
        if self._thread.ident is not None:
            self._pool.add_leaving(self._thread)

    @property
    def has_left(self) -> bool:
        """Whether settled records are committed: a reader that begins earlier reads them again."""
        return self._is_closed and not self._thread.is_alive()

    def _refuse(self, first: int, last: int, what: str, hint: str) -> None:
        """The source will be lost: records in flight are settled before, or they would be redelivered each time."""
        origin = f"partition {first >> PARTITION_SHIFT}, offset {first & (1 << PARTITION_SHIFT) - 1}"
        text = f"topic '{self._options.topic}': the record at {origin} would have to {what}"
        self._refused.add(text + (f"; {hint}" if hint else ""), last - first + 1)
        self._thread.grant(0)
        self._mark()
