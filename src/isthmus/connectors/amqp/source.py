"""A queue, topic or durable subscription of a broker on the port.

What it is: the link from one address: credit, deliveries in their order, and their outcomes. What it is not: the decision what is settled or
how much may be in flight (`isthmus.bridge`).
Specification: OASIS AMQP 1.0, 2.6 (links), 3.4 (outcomes), 3.5 (sources).

Order. Deliveries keep the order in which the broker sends them. Messages that return to the broker, by `release` or with a connection, are
delivered again before the later ones, if the broker keeps its queue's order and this source is its only consumer: an ordered
source reads over no other connection before the broker has given a lost one up (`container`).

Invariants:
    I1. The link's credit never exceeds the owner's grant minus the delivered messages.
    I2. No delivery gets an outcome at the broker except from the owner, or because it had one before the connection was lost.
    I3. A delivery of a lost link that the next one repeats keeps its position, where it has a message-id.
    I4. At the end unsettled and undelivered messages are released before the link is detached.
    I5. A link on which the broker settles its deliveries is not used.
    I6. With `only_present` it reports `Exhausted` once a drained link had no message, nothing is unsettled, and the broker keeps none for
        a connection whose loss it may not have detected.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

from isthmus.amqp.performative import Error, Modified, Rejected, Released
from isthmus.amqp.types import Symbol
from isthmus.bridge.delivery_event import Disposition
from isthmus.bridge.port import Arrived, Drained, Exhausted, SourceEvent, SourceLost, SourceOpened
from isthmus.connectors.amqp.dead_letter import DeadLetters
from isthmus.connectors.amqp.option import SourceOptions
from isthmus.connectors.amqp.position import Positions
from isthmus.connectors.amqp.present import Present
from isthmus.connectors.amqp.redelivery import RedeliveryMemory
from isthmus.connectors.amqp.remote import can_drain, receiver_terms, remote_of
from isthmus.connectors.servicebus.port.connection import Remote
from isthmus.connectors.servicebus.port.end import End, MarkedReceiver, MarkedSender, Step
from isthmus.connectors.servicebus.port.link_state import MASK32, DeliveryIds, OwnerCredit
from isthmus.connectors.servicebus.port.pool import ConnectionPool
from isthmus.connectors.servicebus.refusal import may_pass
from isthmus.connectors.servicebus.spark.ledger import Ledger
from isthmus.errors import IsthmusError, NotAllowedError
from isthmus.transport import Client
from isthmus.transport.receiver import Deliveries

__all__ = ["LEAVE_SECONDS", "AmqpSource"]

# How long a closed source waits for deliveries in transit.
LEAVE_SECONDS = 3.0
# OASIS AMQP 1.0, 2.8.2: the sender settles all its deliveries.
SETTLED = 1
# An unanswered drain is repeated: ActiveMQ Artemis ignores one that arrives while it ends another.
ASK_AGAIN_SECONDS = 1.0
_LAST_POSITION = (1 << 64) - 1
_POSITIONS = Positions()


class AmqpSource(End):
    """One route's source.

    Args:
        pool: the pool that it belongs to.
        key: its key in the pool.
        options: the address, and how it is read.
        remote: the broker.
        only_present: report when the broker has no more messages.
    """

    def __init__(
        self,
        pool: ConnectionPool,
        key: int,
        options: SourceOptions,
        remote: Remote | None = None,
        *,
        only_present: bool,
    ) -> None:
        sessions = 2 if options.dead_letters else 1
        super().__init__(pool, key, options.entity, remote or remote_of(options), sessions)
        self.leave_by = math.inf
        self._options = options
        self._ledger = Ledger()
        self._memory = RedeliveryMemory()
        self._credit = OwnerCredit()
        self._ids = DeliveryIds()
        self._receiver: MarkedReceiver | None = None
        self._present = Present() if only_present else None
        self._dead_letters = DeadLetters(options.dead_letters, self.mark) if options.dead_letters else None
        self._has_left = False
        self._ask_again_at = math.inf

    # ---- the port

    @property
    def clock_offset_ms(self) -> int | None:
        """The offset of this machine's clock: a broker reports no time of its own."""
        return round((time.time() - time.monotonic()) * 1000)

    def poll(self, now: float) -> Sequence[SourceEvent]:
        """The events since the last call."""
        events: list[SourceEvent] = []
        self.check_time(now)
        self.check_outcomes(self._dead_senders, now)
        receiver = self._receiver
        if receiver is not None:
            try:
                self._work(receiver, events, now)
            except IsthmusError as error:
                self.fail(error)
        fault = self.fault or (receiver.error if receiver is not None else None)
        if fault is not None:
            self._lost(fault, events, now)
        self._ask_again(now)
        if self._credit.draining and self._is_drained():
            events.append(Drained())
            self._credit.drained()
            self._refill(now)
        return events

    @property
    def _dead_senders(self) -> tuple[MarkedSender, ...]:
        return () if self._dead_letters is None else self._dead_letters.senders

    def deadline(self, now: float) -> float:
        """When `poll` has work even without socket activity."""
        due = min(self.step_deadline(now), self._ask_again_at, self.outcomes_due(self._dead_senders))
        if self._present is not None and self.step is Step.ATTACHED:
            due = min(due, self._present.due)
        return due

    def grant(self, credit: int) -> None:
        """Sets the credit."""
        self._credit.grant(credit)
        self._refill(time.monotonic())

    def drain(self) -> None:
        """Withdraws the credit."""
        self._credit.drain()
        if self.step is Step.ATTACHED and self._receiver is not None:
            self._drain(self._receiver)
        self.mark()

    def settle(self, first: int, last: int, disposition: Disposition | None = None) -> None:
        """Settles delivered positions."""
        is_dead = disposition is not None and disposition.kind == "dead-letter"
        if disposition is not None and is_dead and self._dead_letters is not None:
            self._set_aside(self._dead_letters, first, last, disposition)
        elif disposition is not None and is_dead and not self._options.rejects:
            reason = f"{disposition.reason}: {disposition.description}".strip(": ")
            self.release(first, last)
            self.fail(
                NotAllowedError(
                    f"'{self.path}': a message would have to be set aside ({reason}), and a broker may drop rejected messages; "
                    "write rejects: true in the namespace where the broker keeps it, or let refusals block"
                )
            )
        else:
            self._settle(first, last, _outcome(disposition))

    def release(self, first: int, last: int) -> None:
        """Releases delivered positions."""
        self._settle(first, last, Released())

    def close(self) -> None:
        """Closes it. Messages that still arrive are released, in the background."""
        self.pool.unmark(self.key)
        now = self.leave_by = time.monotonic()
        receiver = self._receiver
        if receiver is None or receiver.error is not None or self.fault is not None or self.step is not Step.ATTACHED:
            self._end(now)
            return
        self.leave_by = now + LEAVE_SECONDS
        low = 0
        for position in self._dead_letters.pending() if self._dead_letters is not None else ():
            if low < position:
                self.release(low, position - 1)
            low = position + 1
        self.release(low, _LAST_POSITION)
        self._release_unsettled(receiver)
        if receiver.credit:
            receiver.drain()
        self.pool.add_leaving(self)

    @property
    def has_left(self) -> bool:
        """Whether another source may open: all messages of this one are released, so that the next one receives them in order."""
        return self._has_left

    # ---- the end

    def mark(self) -> None:
        """It has events to report, or work to do."""
        if self.leave_by < math.inf:
            self.pool.mark_leaving(self)
        else:
            super().mark()

    def leave(self, now: float) -> bool:
        """Continues closing; returns whether it is done."""
        receiver = self._receiver
        if receiver is None:
            return True
        self._release_unsettled(receiver)
        is_owed = self._owes_copies() or receiver.credit
        if is_owed and now < self.leave_by and self.fault is None and receiver.error is None:
            return False
        self._end(now)
        return True

    def _owes_copies(self) -> bool:
        """Whether copies of messages set aside are in flight; accepts the originals of stored ones."""
        if self._dead_letters is None:
            return False
        try:
            for first, last in self._dead_letters.stored():
                self._settle(first, last, None)
        except IsthmusError:
            return False  # the originals are delivered again
        return bool(self._dead_letters.pending())

    def _end(self, now: float) -> None:
        self._end_links(now)
        self.disconnect(now)
        self._has_left = True

    def _release_unsettled(self, receiver: MarkedReceiver) -> None:
        for run in receiver.take():
            receiver.dispose(run.first_id, (run.first_id + len(run.tags) - 1) & MASK32, Released())

    # ---- the link

    def attach(self, client: Client) -> None:
        """Begins the link."""
        self._ids = DeliveryIds()
        terms = receiver_terms(self._options, drains=can_drain(client))
        self._receiver = MarkedReceiver(self.mark, client, self.path, terms)
        if self._dead_letters is not None:
            self._dead_letters.attach(client)

    def _work(self, receiver: MarkedReceiver, events: list[SourceEvent], now: float) -> None:
        is_sound = receiver.error is None and self.fault is None
        if is_sound and self.step is Step.ATTACHING and receiver.attached:
            peer = receiver.link.peer
            if peer is not None and peer.snd_settle_mode == SETTLED:
                self.fail(
                    NotAllowedError(
                        f"'{self.path}': the broker settles its deliveries, so that a process that dies loses them; read a queue or a durable "
                        "subscription"
                    )
                )
                return
            self.attached()
            self._memory.opened(now)
            if self._present is not None:
                self._present.moved(now)
            events.append(SourceOpened())
        if self.step is not Step.ATTACHED:
            return
        for run in receiver.take():
            if self._memory.is_expecting:
                self._compare(receiver, run, events, now)
            else:
                self._arrived(run, _POSITIONS.take(len(run.tags)), events, now)
            if self._present is not None:
                self._present.moved(now)
        if not is_sound:
            return
        if self._dead_letters is not None:
            for first, last in self._dead_letters.stored():
                self._settle(first, last, None)
        self._check_present(receiver, events, now)
        self._refill(now)

    def _arrived(self, run: Deliveries, positions: Sequence[int], events: list[SourceEvent], now: float) -> None:
        self._memory.delivered(positions, run.payloads, now, self._ledger.first_sequence)
        self._ledger.add(positions, self._ids.unwrapped(run.first_id), run.tags)
        self._credit.given(len(run.tags))
        events.append(Arrived(positions, run.payloads))

    def _compare(self, receiver: MarkedReceiver, run: Deliveries, events: list[SourceEvent], now: float) -> None:
        """After a lost link: checks each delivery, whether it is a redelivery."""
        for at, payload in enumerate(run.payloads):
            delivery_id = (run.first_id + at) & MASK32
            again = self._memory.again(payload, now)
            if again is not None and again.is_settled:
                self._ids.unwrapped(delivery_id)
                self._memory.delivered((again.position,), (payload,), now, self._ledger.first_sequence)
                self._memory.settled(again.position, again.position, again.state)
                receiver.dispose(delivery_id, delivery_id, again.state)
                continue
            positions: Sequence[int] = _POSITIONS.take(1) if again is None else (again.position,)
            self._arrived(Deliveries(delivery_id, run.tags[at : at + 1], (payload,)), positions, events, now)

    def _check_present(self, receiver: MarkedReceiver, events: list[SourceEvent], now: float) -> None:
        present = self._present
        if present is None or present.is_reported or self._credit.draining:
            return
        if present.is_asking:
            if not receiver.drained:
                return
            present.is_asking = False
            kept_until = self.pool.kept_until(self._remote.connection_key)
            if now < kept_until:
                present.due = kept_until  # the broker may keep messages for a link whose loss it has not detected
            elif receiver.received == present.received and not self._ledger.outstanding:
                present.is_reported, present.due = True, math.inf
                events.append(Exhausted())
            else:
                present.moved(now)
        elif now >= present.due:
            if receiver.credit and not self._ledger.outstanding:
                present.is_asking, present.received, present.due = True, receiver.received, math.inf
                self._drain(receiver)
            else:
                present.moved(now)

    def _refill(self, now: float) -> None:
        """Sets the link's credit to the owner's grant minus the delivered messages."""
        receiver = self._receiver
        if receiver is None or self.step is not Step.ATTACHED or receiver.error is not None or self.fault is not None:
            return
        if self._credit.draining or (self._present is not None and self._present.is_asking):
            return
        if self._dead_letters is not None and self._dead_letters.is_full:
            return
        wanted = max(0, self._credit.left - sum(len(run.tags) for run in receiver.arrived))
        if wanted > receiver.credit:  # a lower credit would cross deliveries in transit; `drain` withdraws credit
            receiver.grant(wanted)

    def _drain(self, receiver: MarkedReceiver) -> None:
        receiver.drain()
        self._ask_again_at = time.monotonic() + ASK_AGAIN_SECONDS

    def _ask_again(self, now: float) -> None:
        receiver = self._receiver
        if now < self._ask_again_at:
            return
        self._ask_again_at = math.inf
        if receiver is not None and receiver.error is None and self.step is Step.ATTACHED and not receiver.drained:
            self._drain(receiver)

    def _is_drained(self) -> bool:
        receiver = self._receiver
        return receiver is None or self.step is not Step.ATTACHED or (receiver.drained and not receiver.arrived)

    # ---- settling

    def _settle(self, first: int, last: int, state: Any) -> None:
        receiver = self._receiver
        self._memory.settle(first, last, state, time.monotonic())
        for span in self._ledger.settle(first, last):
            self._memory.settled(span.sequence, span.sequence + len(span.tokens) - 1, state)
            # Over a lost link whose loss is not reported yet this has no effect: the memory repeats it when the messages are redelivered.
            if receiver is not None and receiver.client.error is None:
                receiver.dispose(span.delivery_id & MASK32, span.last_id & MASK32, state)

    def _set_aside(self, dead_letters: DeadLetters, first: int, last: int, disposition: Disposition) -> None:
        """Sends copies to the address of dead letters; the messages are accepted once the broker has stored these."""
        for span in self._ledger.spans():
            low, high = max(first, span.sequence), min(last, span.sequence + len(span.tokens) - 1)
            for position in range(low, high + 1):
                dead_letters.send(position, self._memory.payload(position), disposition)

    # ---- the end of a link

    def _lost(self, error: IsthmusError, events: list[SourceEvent], now: float) -> None:
        self._end_links(now)
        self.disconnect(now)
        if self._credit.draining:
            events.append(Drained())
        self._credit = OwnerCredit()
        events.append(SourceLost(str(error), not may_pass(error)))

    def _end_links(self, now: float) -> None:
        receiver, self._receiver = self._receiver, None
        self._memory.lost([(each.sequence, each.sequence + len(each.tokens) - 1) for each in self._ledger.clear()], now)
        for position in self._dead_letters.link_lost() if self._dead_letters is not None else ():
            self._memory.settle(position, position, Released(), now)  # the owner has settled it
        if self._present is not None:
            self._present = Present()
        if receiver is not None and receiver.client.error is None:
            receiver.close()
        elif receiver is not None and receiver.client.held_seconds:
            self.pool.note_kept(self._remote.connection_key, now + receiver.client.held_seconds)


def _outcome(disposition: Disposition | None) -> Any:
    """The outcome of a disposition (OASIS AMQP 1.0, 3.4); None is accepted."""
    if disposition is None or disposition.kind == "complete":
        return None
    if disposition.kind == "dead-letter":
        text = f"{disposition.reason}: {disposition.description}" if disposition.description else disposition.reason
        return Rejected(Error(Symbol("amqp:precondition-failed"), text[:4096]))
    return Modified(True, disposition.kind == "defer")
