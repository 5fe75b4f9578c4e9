"""A source entity on the port.

What it is: the link from one queue, subscription or dead-letter queue: credit, deliveries in their order, settlement, renewal
of locks. What it is not: the decision what is settled or how much may be in flight (`isthmus.bridge`).

Credit. The owner's credit counts messages that it receives; credit of messages that the guard releases is granted to the link again.

Invariants:
    I1. The link's credit never exceeds the owner's unused grant.
    I2. Deliveries of a lost link are renewed and settled by lock token once the source is open again.
    I3. In an ordered source no message is delivered while an earlier one is locked by an earlier reader.
    I4. With `only_present` no message is delivered that was enqueued after the first opening, and the end is reported again after a lost link.
    I5. Undelivered messages are released before the link is detached, at any end of it; at a close unsettled ones are, too.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

from isthmus.amqp.performative import Released
from isthmus.bridge.delivery_event import Disposition
from isthmus.bridge.port import Arrived, Blocked, Drained, Exhausted, SourceEvent, SourceLost, SourceOpened
from isthmus.connectors.servicebus.message.sequence import UNREADABLE
from isthmus.connectors.servicebus.option import SourceOptions
from isthmus.connectors.servicebus.port.arrival_clock import ArrivalClock
from isthmus.connectors.servicebus.port.connection import remote_of
from isthmus.connectors.servicebus.port.end import End, MarkedReceiver, Step
from isthmus.connectors.servicebus.port.link_state import MASK32, LinkState, OwnerCredit
from isthmus.connectors.servicebus.port.peek.head_guard import GUARD_SECONDS, PROBE, HeadGuard, Run
from isthmus.connectors.servicebus.port.peek.node import Node
from isthmus.connectors.servicebus.port.peek.present import Present
from isthmus.connectors.servicebus.port.pool import ConnectionPool
from isthmus.connectors.servicebus.port.token_map import TokenMap
from isthmus.connectors.servicebus.port.token_request import TokenRequests
from isthmus.connectors.servicebus.refusal import may_pass
from isthmus.connectors.servicebus.spark.disposition import outcome_of
from isthmus.errors import IsthmusError, ProtocolError
from isthmus.transport import Client

__all__ = ["LEAVE_SECONDS", "ServiceBusSource"]

# How long a closed source waits for deliveries in transit, and for answers to settlements by lock token.
LEAVE_SECONDS = 3.0
_LAST_POSITION = (1 << 64) - 1
# A dead letter gets a number of the dead-letter queue, and keeps the time at which its entity enqueued it.
_DEAD_LETTERS = "$deadletterqueue"


class ServiceBusSource(End):
    """One route's source.

    Args:
        pool: the pool that it belongs to.
        key: its key in the pool.
        options: the entity, and how it is read.
        ordered: whether it waits for earlier messages that other receivers have locked.
        only_present: deliver only messages that exist when it is first opened.
    """

    def __init__(
        self, pool: ConnectionPool, key: int, options: SourceOptions, *, ordered: bool, only_present: bool
    ) -> None:
        super().__init__(pool, key, options.entity.strip("/"), remote_of(options), sessions=2)
        self.leave_by = math.inf
        self._clock = ArrivalClock(options.lock_seconds)
        self._tokens = TokenMap()
        self._requests = TokenRequests(self.path, self.mark)
        self._node = Node(self.path, self.mark)
        self._guard = HeadGuard() if ordered else None
        self._present = Present() if only_present else None
        self._link = LinkState()
        self._credit = OwnerCredit()
        self._receiver: MarkedReceiver | None = None
        self._blocked_by = 0

    # ---- the port

    @property
    def clock_offset_ms(self) -> int | None:
        """The wall time of the namespace minus monotonic time, in ms; None while unknown."""
        return self._clock.offset_ms

    def poll(self, now: float) -> Sequence[SourceEvent]:
        """The events since the last call; renews locks that are due."""
        events: list[SourceEvent] = []
        self.check_time(now)
        receiver = self._receiver
        if receiver is not None:
            try:
                self._work(receiver, events, now)
            except IsthmusError as error:
                self.fail(error)
        fault = self.fault or (receiver.error if receiver is not None else None)
        if fault is not None:
            self._lost(fault, events, now)
        if self._credit.draining and self._is_drained():
            events.append(Drained())
            self._credit.drained()
            self._refill(now)
        return events

    def deadline(self, now: float) -> float:
        """When `poll` has work even without socket activity."""
        due = self.step_deadline(now)
        if self.step is Step.ATTACHED:
            due = min(due, self._requests.deadline(), self._node.deadline())
            if not self._requests.is_renewing:
                due = min(due, self._renewal_due())
            if (
                self._guard is not None
                and self._guard.retry_at
                and self._receiver is not None
                and self._receiver.drained
            ):
                due = min(due, self._guard.retry_at)
            if self._present is not None:
                due = min(due, self._present.deadline())
        return due

    def grant(self, credit: int) -> None:
        """Sets the credit."""
        self._credit.grant(credit)
        self._refill(time.monotonic())

    def drain(self) -> None:
        """Withdraws the credit."""
        self._credit.drain()
        if self.step is Step.ATTACHED and self._receiver is not None:
            self._receiver.drain()
        self.mark()

    def settle(self, first: int, last: int, disposition: Disposition | None = None) -> None:
        """Settles delivered positions."""
        state = None
        if disposition is not None:
            state = outcome_of(disposition.kind, disposition.reason, disposition.description)
        self._settle(first, last, state)

    def release(self, first: int, last: int) -> None:
        """Releases delivered positions."""
        self._settle(first, last, Released())

    def close(self) -> None:
        """Closes it. Messages that still arrive are released, and unanswered settlements by lock token repeated, in the background."""
        self.pool.unmark(self.key)
        now = self.leave_by = time.monotonic()
        receiver = self._receiver
        if receiver is None or receiver.error is not None or self.fault is not None or self.step is not Step.ATTACHED:
            self._end_links()
            self.disconnect(now)
            return
        self.leave_by = now + LEAVE_SECONDS
        self.release(0, _LAST_POSITION)
        self._release_unsettled(receiver)
        if receiver.credit:
            receiver.drain()
        self.pool.add_leaving(self)

    @property
    def has_left(self) -> bool:
        """True: another source may open at once, because the messages of this one are locked, and an ordered source waits for them."""
        return True

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
        try:
            self._requests.advance(now, lambda: self._node.management(receiver.client))
        except IsthmusError as error:
            self.fault = self.fault or error
        is_done = receiver.credit == 0 and self._requests.is_idle
        if not is_done and now < self.leave_by and self.fault is None and receiver.error is None:
            return False
        self._end_links()
        self.disconnect(now)
        return True

    def _release_unsettled(self, receiver: MarkedReceiver) -> None:
        if self._guard is not None:
            self._guard.clear()
            self._release_refused(receiver, self._guard)
        for run in receiver.take():
            receiver.dispose(run.first_id, run.first_id + len(run.tags) - 1, Released())

    # ---- the link

    def attach(self, client: Client) -> None:
        """Begins the link."""
        self._receiver = MarkedReceiver(self.mark, client, self.path)
        self._link = LinkState()

    def _work(self, receiver: MarkedReceiver, events: list[SourceEvent], now: float) -> None:
        client = receiver.client
        is_sound = receiver.error is None and self.fault is None
        if is_sound:
            self._take_queries(now, client)
            if self.step is Step.ATTACHING and receiver.attached and self._is_prepared(now):
                self._opened(client, events, now)
        if self.step is not Step.ATTACHED:
            return
        if self._guard is not None:
            self._guard.note_coming(sum(len(run.tags) for run in receiver.arrived) + receiver.credit, now)
        for run in receiver.take():
            self._arrived(receiver, run.first_id, run.tags, run.payloads, now)
        self._hand_on(receiver, events, now)
        if not is_sound:
            return
        self._retry(receiver, now)
        self._check_present(receiver, events, now)
        self._report_blocked(events)
        self._renew(now)
        self._requests.advance(now, lambda: self._node.management(client))
        self._refill(now)

    def _take_queries(self, now: float, client: Client) -> None:
        guard, present = self._guard, self._present
        for query in self._node.advance(now, client):
            if guard is not None and query is guard.query:
                guard.peeked(now, self._clock.wall_ms(now))
            elif present is not None:
                present.peeked(now)

    def _is_prepared(self, now: float) -> bool:
        query = self._present.begin(now) if self._present is not None else None
        self._node.run(query)
        return query is None

    def _opened(self, client: Client, events: list[SourceEvent], now: float) -> None:
        self.attached()
        self._link = LinkState(now)
        if self._guard is not None:
            self._guard.until = math.inf  # until the first delivery shows the lock duration
        events.append(SourceOpened(client.namespace_id, self.path.lower().endswith(_DEAD_LETTERS)))

    def _arrived(
        self, receiver: MarkedReceiver, first_id: int, tokens: Sequence[bytes], payloads: Sequence[bytes], now: float
    ) -> None:
        try:
            sequences = self._link.sequences.of(payloads)
        except UNREADABLE as error:
            raise ProtocolError(f"'{self.path}': a delivery cannot be read: {error}") from None
        self._clock.read(payloads, now)
        if not self._link.has_learned:
            self._link.has_learned = True
            self._clock.learn(payloads[0])
            if self._guard is not None:
                # By then every lock of an earlier reader has expired.
                self._guard.until = self._link.began + self._clock.longest_seconds + GUARD_SECONDS
        run = Run(self._link.ids.unwrapped(first_id), sequences, tokens, payloads)
        for part in self._present_parts(receiver, run):
            if self._guard is not None:
                self._guard.take(part, now, self._clock.wall_ms(now))
            else:
                self._link.ready.append(part)

    def _present_parts(self, receiver: MarkedReceiver, run: Run) -> list[Run]:
        """The parts of a run that belong to the existing messages; the others are released."""
        if self._present is None:
            return [run]
        kept, others = self._present.divided(run)
        for part in others:
            self._release(receiver, part)
        return kept

    def _hand_on(self, receiver: MarkedReceiver, events: list[SourceEvent], now: float) -> None:
        guard = self._guard
        ready = self._link.ready if guard is None else guard.ready
        while ready:
            run = ready.popleft()
            self._tokens.add(run.sequences, run.first_id, run.tokens, now)
            self._credit.given(len(run.tokens))
            if self._present is not None:
                self._present.given(run.sequences, now)
            events.append(Arrived(run.sequences, run.payloads))
        if guard is not None:
            self._release_refused(receiver, guard)
            if guard.retry_at and not self._link.is_retrying:
                self._link.is_retrying = True
                receiver.drain()
            self._node.run(guard.query)
        if self._present is not None and self._present.is_over and receiver.credit:
            receiver.drain()

    def _retry(self, receiver: MarkedReceiver, now: float) -> None:
        """After a while, and when no released message is in transit any more, the guard checks again."""
        guard = self._guard
        if guard is not None and guard.retry_at and now >= guard.retry_at and receiver.drained:
            self._link.is_retrying = False
            guard.retry()

    def _check_present(self, receiver: MarkedReceiver, events: list[SourceEvent], now: float) -> None:
        present, guard = self._present, self._guard
        if present is None or self._link.has_reported_end:
            return
        if not present.is_over:
            is_clear = guard is None or not (guard.kept or guard.retry_at)
            is_idle = receiver.credit > 0 and not self._tokens.unsettled and is_clear and not self._credit.draining
            self._node.run(present.check(now, self._clock.wall_ms(now), is_idle=is_idle))
        if present.is_over:
            self._link.has_reported_end = True
            events.append(Exhausted())

    def _report_blocked(self, events: list[SourceEvent]) -> None:
        hole = self._guard.hole if self._guard is not None else None
        blocked_by = hole.sequence if hole is not None else self._present.locked if self._present is not None else 0
        if blocked_by != self._blocked_by:
            self._blocked_by = blocked_by
            events.append(Blocked(blocked_by))

    def _renewal_due(self) -> float:
        lock_seconds = self._clock.renewal_seconds
        due = self._tokens.renewal_due(lock_seconds)
        return due if self._guard is None else min(due, self._guard.renewal_due(lock_seconds))

    def _renew(self, now: float) -> None:
        if self._requests.is_renewing or now < self._renewal_due():
            return
        lock_seconds = self._clock.renewal_seconds
        kept = self._guard.renew(now, lock_seconds) if self._guard is not None else []
        self._requests.renew(self._tokens.renew(now, lock_seconds) + kept)

    def _refill(self, now: float) -> None:
        """Sets the link's credit to the owner's unused grant."""
        receiver, guard = self._receiver, self._guard
        if receiver is None or self.step is not Step.ATTACHED or receiver.error is not None or self.fault is not None:
            return
        is_releasing = (guard is not None and guard.retry_at) or (self._present is not None and self._present.is_over)
        if not is_releasing and not self._credit.draining:
            in_flight = sum(len(run.tags) for run in receiver.arrived) + (guard.kept if guard is not None else 0)
            wanted = max(0, self._credit.left - in_flight)
            if guard is not None and guard.hole is not None:
                wanted = min(wanted, PROBE)
            if wanted > receiver.credit:  # a lower credit would cross deliveries in transit; `drain` withdraws credit
                receiver.grant(wanted)
        self._clock.credit(receiver.credit, now)

    def _is_drained(self) -> bool:
        receiver, guard = self._receiver, self._guard
        if receiver is None or self.step is not Step.ATTACHED:
            return True
        return receiver.drained and not receiver.arrived and not (guard is not None and guard.kept)

    # ---- settling

    def _settle(self, first: int, last: int, state: Any) -> None:
        on_link, by_token = self._tokens.take(first, last)
        receiver = self._receiver
        for span in on_link:
            if receiver is not None and receiver.error is None and receiver.client.error is None:
                receiver.dispose(span.delivery_id & MASK32, span.last_id & MASK32, state)
            else:
                self._requests.settle(span.tokens, state)
        for span in by_token:
            self._requests.settle(span.tokens, state)
        if by_token:
            self.mark()

    def _release(self, receiver: MarkedReceiver, run: Run) -> None:
        receiver.dispose(run.first_id & MASK32, (run.first_id + len(run.tokens) - 1) & MASK32, Released())

    def _release_refused(self, receiver: MarkedReceiver, guard: HeadGuard) -> None:
        while guard.refused:
            self._release(receiver, guard.refused.popleft())

    # ---- the end of a link

    def _lost(self, error: IsthmusError, events: list[SourceEvent], now: float) -> None:
        receiver = self._receiver
        if receiver is not None and self.step is Step.ATTACHED and not (receiver.error or receiver.client.error):
            self._release_unsettled(receiver)
        self._end_links()
        self.disconnect(now)
        self._report_blocked(events)
        if self._credit.draining:
            events.append(Drained())
        self._credit = OwnerCredit()
        events.append(SourceLost(str(error), not may_pass(error), voids_end=self._present is not None))

    def _end_links(self) -> None:
        receiver, self._receiver = self._receiver, None
        for part in (self._node, self._requests, self._tokens, self._guard, self._present):
            if part is not None:
                part.link_lost()
        if receiver is not None and receiver.client.error is None:
            receiver.close()
