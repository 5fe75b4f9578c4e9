"""A topic as a target on the port.

What it is: the copies as records, their order, and the cluster's answers as events of the delivery machine. What it is not: the decision what is
sent when (`isthmus.bridge.delivery.delivery`), or the producer (`producer`). docs/how-to/use-kafka.md.

Order. Records of a partition are stored in the order in which they were sent. The partition of a record is chosen by
`partitioning`: messages of one key, or of one partition of a Kafka source, keep their order.

Invariants:
    I1. Ordinals of outcomes are those of the present connection, from 0, in the order of sending.
    I2. Copies are made for the cluster that answered first; another one is refused by this target.
    I3. A cluster that acknowledges no sent record for `stall_seconds` is lost, and all records are given up together.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from isthmus.amqp.codec import CodecError
from isthmus.bridge.delivery_event import Granted, Lost, Opened, Send
from isthmus.bridge.port import Copies, TargetEvent
from isthmus.bridge.refusal import Refusal, RefusalKind
from isthmus.connectors.copier import SourceIsTargetError, check_apart, copies_of
from isthmus.connectors.end_pool import EndPool
from isthmus.connectors.flight import Flight
from isthmus.connectors.kafka.mapping.mapping import Record, to_record
from isthmus.connectors.kafka.option import TargetOptions
from isthmus.connectors.kafka.producer import ProducerThread
from isthmus.connectors.servicebus.message.message_rewriter import Mark, MessageRewriter
from isthmus.errors import InvalidArgumentError
from isthmus.message.copy_policy import CopyPolicy

__all__ = ["CREDIT", "KafkaTarget"]

# The producer's queue limit; the delivery machine's window is smaller.
CREDIT = 20_000


class KafkaTarget:
    """One route's target.

    Args:
        pool: the pool that it belongs to.
        key: its key in the pool.
        options: the topic, and how copies are made.
        origin_identity: identity of the namespace from which the messages are read; empty where unknown.
        thread: makes the sending thread.
    """

    def __init__(
        self,
        pool: EndPool,
        key: int,
        options: TargetOptions,
        origin_identity: str,
        thread: Callable[..., ProducerThread] = ProducerThread,
    ) -> None:
        self._pool = pool
        self._key = key
        self._options = options
        self._origin_identity = origin_identity
        self._make_thread = thread
        self._thread: ProducerThread | None = None
        self._cluster_id: str | None = None
        self._rewriter: MessageRewriter | None = None
        self._flight = Flight(CREDIT)
        self._is_open = self._is_closed = False

    def open(self) -> None:
        """Begins to connect."""
        if self._is_closed:
            return
        self._disconnect()
        self._thread = self._make_thread(self._options, self._mark)
        self._thread.start()

    def _mark(self) -> None:
        self._pool.mark(self._key)

    def poll(self, now: float) -> Sequence[TargetEvent]:
        """The events since the last call."""
        thread = self._thread
        if thread is None:
            return ()
        events: list[TargetEvent] = []
        refusal = thread.lost
        if not self._is_open and thread.view is not None and refusal is None:
            refusal = self._opened(thread.view.cluster_id)
            if refusal is None:
                events += (Opened(), Granted(CREDIT))
        if self._is_open:
            count = self._flight.credit
            events += self._flight.answered(*thread.take(), now)
            if self._flight.credit != count:
                events.append(Granted(self._flight.credit))
            if refusal is None and now >= self._flight.since + self._options.stall_seconds:
                text = f"topic '{self._options.topic}': no acknowledgement for {self._options.stall_seconds:g} s"
                trouble = f" ({thread.trouble})" if thread.trouble else ""
                refusal = Refusal(RefusalKind.UNKNOWN, "", text + trouble)
        if refusal is not None:
            events += self._flight.lost(refusal)
            self._disconnect()
            events.append(Lost(refusal))
        return events

    def deadline(self, now: float) -> float:
        """When `poll` has work even without events."""
        return self._flight.since + self._options.stall_seconds

    def copies(self, data: bytes, offsets: Sequence[int], now_ms: int) -> Copies:
        """The copies of messages as this target accepts them.

        Raises:
            InvalidArgumentError: the target was never open.
        """
        if self._cluster_id is None:
            raise InvalidArgumentError("copies are made for a target that has answered; wait for Opened")
        if self._rewriter is None:
            return Copies([data[offsets[at] : offsets[at + 1]] for at in range(len(offsets) - 1)])
        return copies_of(self._rewriter, data, offsets, now_ms)

    def send(self, send: Send) -> None:
        """Queues deliveries; after a lost connection it does nothing, and `poll` reports the loss."""
        thread = self._thread
        if thread is None or not self._is_open:
            return
        now = time.monotonic()
        groups = (send.payloads,) if send.is_envelope else ((payload,) for payload in send.payloads)
        for group in groups:
            for number, payload in enumerate(group, self._flight.sent(len(group), now)):
                try:
                    record = to_record(payload)
                except CodecError as error:
                    thread.refuse(number, Refusal(RefusalKind.MESSAGE, "", str(error), "Malformed"))
                    continue
                thread.send(number, record, self._partition(record))

    def close(self) -> None:
        """Closes it."""
        self._is_closed = True
        self._disconnect()
        self._pool.unmark(self._key)

    # ---- the connection

    def _partition(self, record: Record) -> int:
        """The partition of a record; -1: its key decides, or any."""
        how = self._options.partitioning
        if how == "single":
            return 0
        if record.partition is None or record.partition < 0 or (how == "key" and record.key is not None):
            return -1
        view = self._thread.view if self._thread is not None else None
        return record.partition % view.partitions if view is not None else -1

    def _opened(self, cluster_id: str) -> Refusal | None:
        if self._cluster_id is None:
            try:
                self._rewriter = self._rewriter_for(cluster_id)
            except SourceIsTargetError as error:
                return Refusal(RefusalKind.FATAL, "", str(error))
            self._cluster_id = cluster_id
        elif self._cluster_id != cluster_id:
            text = f"topic '{self._options.topic}': another cluster, '{cluster_id}', answers now"
            return Refusal(RefusalKind.FATAL, "", text)
        self._is_open = True
        self._flight = Flight(CREDIT)
        return None

    def _rewriter_for(self, cluster_id: str) -> MessageRewriter | None:
        options = self._options
        if not options.origin and not options.target and not options.policy:
            return None
        origin = self._origin_identity
        check_apart(
            options.origin,
            options.target,
            options.topic,
            origin_identity=origin,
            target_identity=cluster_id,
            is_cased=True,
        )
        return MessageRewriter(
            options.origin,
            options.target,
            options.hop_budget,
            origin_namespace=origin if options.origin else "",
            target_namespace=cluster_id,
            entity=options.topic,
            mark=Mark(options.mark, is_number=options.mark_value == "number") if options.mark else None,
            trusts=options.trusts_provenance,
            policy=CopyPolicy.from_text(options.policy),
        )

    def _disconnect(self) -> None:
        thread, self._thread = self._thread, None
        self._is_open = False
        self._flight = Flight(CREDIT)
        if thread is not None:
            thread.stop()
            self._pool.add_leaving(thread)
