"""An event hub as a source on the port.

What it is: the port, the opening, and the events from the links to the hub's partitions. What it is not: the links and their credit
(`link_set`), the account of read events (`reading`), the start of reading (`opening`), lost events (`loss`), settlement
(`settlement`), or checkpoints (`checkpoint.checkpointer`). docs/how-to/use-eventhubs.md.

An opening, in order: connection, token, a query of the hub and its partitions, the checkpoints, a link for each partition, the first checkpoint
of those that have none, `SourceOpened`.

A checkpoint, in order: the target has acknowledged; the owner settles; the account finds the last event before any outstanding one of a partition;
that event's checkpoint is written, at most every `checkpoint_seconds`, and at the end.

Invariants:
    I1. Nothing is delivered beyond the credit; order is kept within a partition.
    I2. No checkpoint passes an event without outcome.
    I3. A reader that another one has fenced drops its state: the checkpoint, not its memory, determines where it would continue.
    I4. Events that the retention removed unread are reported once, with their range, before any later one is delivered.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from isthmus.amqp.codec import CodecError
from isthmus.bridge.delivery_event import Disposition
from isthmus.bridge.port import Arrived, Drained, Exhausted, SourceEvent, SourceLost, SourceOpened
from isthmus.connectors.checkpoint.checkpoint import Checkpoint, GroupKey, open_store
from isthmus.connectors.checkpoint.checkpointer import Checkpointer
from isthmus.connectors.checkpoint.thread import CheckpointThread
from isthmus.connectors.eventhubs.dead_letter import DeadLetterHub
from isthmus.connectors.eventhubs.mapping import EventReader
from isthmus.connectors.eventhubs.option import SourceOptions
from isthmus.connectors.eventhubs.partition.address import Begin
from isthmus.connectors.eventhubs.partition.growth import PartitionGrowth
from isthmus.connectors.eventhubs.partition.hub_query import HubQuery
from isthmus.connectors.eventhubs.partition.link_set import PartitionLinks
from isthmus.connectors.eventhubs.partition.loss import Losses
from isthmus.connectors.eventhubs.partition.opening import (
    Opening,
    added,
    distinct_created_ms,
    opening,
    reached,
    remade,
)
from isthmus.connectors.eventhubs.partition.reading import Reading
from isthmus.connectors.eventhubs.pool import HubPool
from isthmus.connectors.eventhubs.reader_choice import reader_of
from isthmus.connectors.eventhubs.settlement import Settlement
from isthmus.connectors.servicebus.port.end import End, Step
from isthmus.connectors.servicebus.refusal import may_pass
from isthmus.errors import ConnectionLostError, IsthmusError, ProtocolError
from isthmus.transport import Client

__all__ = ["EventHubsSource"]

# AMQP sessions of one connection; a hub of the highest tier has more partitions, whose links share them.
SESSIONS = 36
_STOLEN = "amqp:link:stolen"


class EventHubsSource(End):
    """One route's source.

    Args:
        pool: the pool that it belongs to.
        key: its key in the pool.
        options: the event hub, and how it is read.
        only_present: deliver only messages that exist when it is first opened.
        reader: parses events; None: by the options.
        thread: makes the checkpoint thread.
    """

    pool: HubPool

    def __init__(
        self,
        pool: HubPool,
        key: int,
        options: SourceOptions,
        *,
        only_present: bool,
        reader: EventReader | None = None,
        thread: Callable[..., CheckpointThread] = CheckpointThread,
    ) -> None:
        super().__init__(
            pool, key, options.servicebus_options.entity.strip("/"), pool.remote(options.servicebus_options), SESSIONS
        )
        self.settings = options
        self._reading = Reading(
            reader or reader_of(options),
            only_present=only_present,
            keeps=bool(options.dead_letter_topic),
            seconds=options.checkpoint_seconds,
            holds_gaps=True,
        )
        self._checkpoints = Checkpointer(thread(lambda: open_store(options), self._wake), self._reading)
        topic = options.dead_letter_topic
        dead = DeadLetterHub(topic, lambda: self.path, self.mark) if topic else None
        self._settlement = Settlement(self._reading, dead, self.mark)
        self._links = PartitionLinks(options, self._reading, self.mark)
        self._query: HubQuery | None = None
        self._identity = ""
        self._created_ms = 0  # when the event hub that is read was created; 0: unknown
        self._losses = Losses(lambda: self.path, self._reading, self.mark)
        self._growth = PartitionGrowth(self.mark, is_wanted=options.chosen is None and not only_present)
        self._made_again: set[int] = set()  # partitions whose new creation was detected while they were read
        self._is_draining = self._is_closed = False

    def _wake(self) -> None:
        """The thread has an answer; called in that thread."""
        if not self._is_closed:
            self.pool.threads.mark(self.key)

    # ---- the port

    @property
    def clock_offset_ms(self) -> int | None:
        """The offset of this machine's clock: an event's enqueued time is not the present time."""
        return round((time.time() - time.monotonic()) * 1000)

    def poll(self, now: float) -> Sequence[SourceEvent]:
        """The events since the last call."""
        if self._is_closed:
            return ()
        events: list[SourceEvent] = []
        self.check_time(now)
        self.check_outcomes(self._settlement.senders, now)
        try:
            if (error := self._checkpoints.take(now, is_opening=self.step is Step.ATTACHING)) is not None:
                self.fail(error)
            self._advance(events, now)
            self._take_events()
        except CodecError as error:
            self.fail(ProtocolError(f"'{self.path}': {error}"))
        except IsthmusError as error:
            self.fail(error)
        batches = () if self._settlement.is_full else self._reading.take()
        events += [Arrived(batch.positions, batch.payloads) for batch in batches]
        # The owner may close the source after this event: copies of messages set aside must be stored before.
        if not self._settlement.awaits_copies and self._reading.is_over():
            events.append(Exhausted())
        self._checkpoints.commit(now)
        if text := self._settlement.take_refused(now):
            self._end_links()
            self.disconnect(now)
            events.append(SourceLost(f"event hub '{self.path}': {text}", is_fatal=True))
        if self.fault is not None:
            self._lost(self.fault, events, now)
        if self._is_draining:
            self._is_draining = False
            events.append(Drained())
        self._refill()
        return events

    def deadline(self, now: float) -> float:
        """When `poll` has work even without socket activity."""
        due = min(self.step_deadline(now), self._reading.commit_due, self._settlement.refused.due(now))
        return min(due, self._losses.deadline, self._growth.deadline, self.outcomes_due(self._settlement.senders))

    def grant(self, credit: int) -> None:
        """Sets the credit."""
        self._is_draining = False
        self._reading.queue.credit = 0 if self._settlement.refused.text else credit
        self._refill()
        if self._reading.queue.count:
            self.mark()

    def drain(self) -> None:
        """Withdraws the credit; events in transit wait in the queue."""
        self._reading.queue.credit = 0
        self._is_draining = True
        self._refill()
        self.mark()

    def settle(self, first: int, last: int, disposition: Disposition | None = None) -> None:
        """Settles delivered positions."""
        self._settlement.settle(first, last, disposition)

    def release(self, first: int, last: int) -> None:
        """Releases delivered positions; they are read again."""
        self._settlement.release(first, last)

    def close(self) -> None:
        """Closes it; checkpoints of settled events are written in the background."""
        if self._is_closed:
            return
        self._is_closed = True
        self.pool.unmark(self.key)
        if (thread := self._checkpoints.stop()) is not None:
            self.pool.threads.add_leaving(thread)
        self._end_links()
        self.disconnect(time.monotonic())

    @property
    def has_left(self) -> bool:
        """Whether these checkpoints are written: a reader that begins earlier reads the events again."""
        return self._is_closed and self._checkpoints.has_stopped

    # ---- opening

    def attach(self, client: Client) -> None:
        """Queries the hub, and requests the checkpoints."""
        self._identity = client.namespace_id
        key = client.namespace_id, client.endpoint.host, self.path, self.settings.group
        self._checkpoints.load(GroupKey(*key, self._created_ms))
        self._query = HubQuery(client, self.path, self.mark, self.settings.chosen)

    def _advance(self, events: list[SourceEvent], now: float) -> None:
        """Continues the opening, and the work of the links."""
        client = self.client
        if client is None or self.fault is not None:
            return
        query = self._query
        if query is not None:
            query.advance()
            if query.error is not None:
                raise query.error
            if query.is_done and self._checkpoints.kept is not None:
                query.close()
                self._query = None
                self._begin_links(client, query, self._checkpoints.kept)
        self._links.check()
        if self.step is Step.ATTACHING and self._links.are_attached and not self._checkpoints.first:
            self.attached()
            self._growth.begin(now)
            events.append(SourceOpened(self._identity))
        if self.step is Step.ATTACHED:
            self._settlement.serve(client)
            self._losses.query(client, time.monotonic())
            if new := self._growth.added(client, self.path, self._links.partitions, now):
                raise ConnectionLostError(
                    f"event hub '{self.path}': partition {new[0]} was added; it is opened again to read it"
                )
            for partition in sorted(self._reading.rewind):
                self._links.open(client, self.path, partition, Begin(self._reading.next_of(partition)))
            self._reading.rewind.clear()

    def _begin_links(self, client: Client, query: HubQuery, checkpoints: dict[int, Checkpoint]) -> None:
        created_ms = distinct_created_ms(query.created_ms, query.views.values())
        self._made_again |= remade(query.views, created_ms, self._created_ms, checkpoints)
        self._created_ms = created_ms
        self._checkpoints.of_log(self._created_ms)
        first = self._checkpoints.first
        new = added(query.views, checkpoints) if self.settings.chosen is None else []
        openings = {
            number: Opening(Begin(), begins_again=True)
            if number in self._made_again  # whatever the existing checkpoint
            else opening(
                view,
                checkpoints.get(number) or first.get(number),
                self._reading.next_of(number),
                self.settings.start,
                is_added=number in new,
            )
            for number, view in query.views.items()
        }
        for number, each in sorted(openings.items(), reverse=not checkpoints):  # the order in which they are stored
            if each.begins_again:
                first.pop(number, None)
            elif each.checkpoint is not None:
                first[number] = each.checkpoint
        again = [number for number, each in openings.items() if each.begins_again]
        for number in again:
            self._is_made_again(number)
        present = self._reading.present
        if present is not None and present.ends is None:
            present.ends = {number: view.last + 1 for number, view in query.views.items()}
        self._losses.check_openings(openings)
        if any(self._reading.is_in_flight(number) for number in again):
            raise ConnectionLostError(
                f"event hub '{self.path}' was created again; it is read once the events in flight of the previous one have an outcome"
            )
        self._made_again.clear()
        self._losses.reads_again(again)
        self._checkpoints.write_first()
        for number, each in openings.items():
            self._reading.assign(number, begins_again=each.begins_again, first=each.begin.sequence)
            if present is not None:
                present.reached(number, reached(query.views[number], each.begin))
            self._links.open(client, self.path, number, each.begin)
        self._reading.rewind.clear()

    # ---- reading

    def _take_events(self) -> None:
        for partition, payloads in self._links.take():
            self._reading.put(partition, payloads)
        if self._reading.begun_again:
            partition, sequence = next(iter(self._reading.begun_again.items()))
            for number in list(self._reading.begun_again):
                self._losses.knows_of_remake(number)
                self._is_made_again(number)
            raise ConnectionLostError(
                f"event hub '{self.path}', partition {partition}: sequence numbers begin again at {sequence}; the event hub was created again. "
                "It is read from its beginning"
            )

    def _is_made_again(self, number: int) -> None:
        """The partition is read from its beginning at the next opening, however many events it has then."""
        self._made_again.add(number)
        self._reading.made_again(number)
        self._settlement.disown(number)

    def _refill(self) -> None:
        if self.step is Step.ATTACHED and self.fault is None:
            self._links.refill()

    # ---- the end of a connection

    def _lost(self, error: IsthmusError, events: list[SourceEvent], now: float) -> None:
        self._end_links()
        self.disconnect(now)
        self._reading.queue.credit = 0
        if str(error.attributes.get("condition") or "") == _STOLEN:
            self._reading.forget(list(self._reading.account.partitions))
            self._settlement.forget()
            text = (
                f"event hub '{self.path}', group '{self.settings.group}': another reader has fenced this one: {error}"
            )
            events.append(SourceLost(text, is_fatal=True))
            return
        events.append(SourceLost(str(error), not may_pass(error)))

    def _end_links(self) -> None:
        if self._query is not None:
            self._query.close()
            self._query = None
        self._losses.close()
        self._growth.close()
        self._links.close()
        self._settlement.link_lost()
