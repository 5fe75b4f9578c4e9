"""A source entity that requires sessions, on the port.

What it is: several session links from one queue or subscription for one route: it accepts sessions as they become available, shares credit
among them, and keeps the order of each session; settlement, and renewal of the sessions' locks. What it is not: the decisions which
session is kept for how long (`scheduler`), and the handling of messages whose session was lost (`account`).

Order. A session has one receiver at a time, and its link delivers in the session's order. A session is released only when all its
deliveries are settled, so that its next receiver continues after them. When its lock is lost, messages in flight are redelivered over
its next link: the owner still has them and does not pass them on twice, and later messages follow them.

A session that another receiver has locked is not offered; the others continue.

Invariants:
    I1. The credit of all links together never exceeds the owner's unused grant.
    I2. Messages of one session are delivered in the session's order; between sessions there is none.
    I3. The loss of one session ends neither the source nor another session.
    I4. With `only_present` no message is delivered that was enqueued after the first opening.
    I5. `close` releases every session and every unsettled message.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from isthmus.amqp.performative import Released
from isthmus.bridge.delivery_event import Disposition
from isthmus.bridge.port import Arrived, Drained, Exhausted, SourceEvent, SourceLost, SourceOpened
from isthmus.connectors.servicebus.message.sequence import UNREADABLE, sequences_of
from isthmus.connectors.servicebus.port.arrival_clock import ArrivalClock
from isthmus.connectors.servicebus.port.connection import remote_of
from isthmus.connectors.servicebus.port.end import End, Step
from isthmus.connectors.servicebus.port.link_state import MASK32, OwnerCredit
from isthmus.connectors.servicebus.port.option import PortSourceOptions
from isthmus.connectors.servicebus.port.peek.node import Node
from isthmus.connectors.servicebus.port.peek.present import Present
from isthmus.connectors.servicebus.port.pool import ConnectionPool
from isthmus.connectors.servicebus.port.session.account import SessionAccount, Span
from isthmus.connectors.servicebus.port.session.link import SessionLink
from isthmus.connectors.servicebus.port.session.scheduler import (
    QUIET_SECONDS,
    SPARE_SESSIONS,
    LockedSession,
    SessionScheduler,
    shares,
)
from isthmus.connectors.servicebus.port.session.state_copier import READS_AT_ONCE, NoStates, SourceView, StateCopier
from isthmus.connectors.servicebus.refusal import may_pass
from isthmus.connectors.servicebus.spark.disposition import outcome_of
from isthmus.errors import IsthmusError, OperationTimeoutError, ProtocolError
from isthmus.transport import Client
from isthmus.transport.receiver import Deliveries

__all__ = ["SessionSource"]

# The delay before another session is requested, after a request failed temporarily.
RETRY_SECONDS = 0.5
# How long such requests may fail before the source counts as lost, and is reported as such.
REFUSED_SECONDS = 10.0
# AMQP sessions besides one for each Service Bus session: those of the management node, and of links that are being ended.
_SPARE_AMQP_SESSIONS = 2
_LAST_POSITION = (1 << 64) - 1


class SessionSource(End):
    """One route's source.

    Args:
        pool: the pool that it belongs to.
        key: its key in the pool.
        options: the entity, and how many sessions it may lock.
        only_present: deliver only messages that exist when it is first opened.
    """

    def __init__(self, pool: ConnectionPool, key: int, options: PortSourceOptions, *, only_present: bool) -> None:
        reads = READS_AT_ONCE if options.state_entity else 0
        amqp_sessions = options.sessions + SPARE_SESSIONS + reads + _SPARE_AMQP_SESSIONS
        super().__init__(pool, key, options.entity.strip("/"), remote_of(options), sessions=amqp_sessions)
        self._clock = ArrivalClock(options.lock_seconds)
        self._has_learned = False
        self._node = Node(self.path, self.mark)
        self._present = Present(in_order=False) if only_present else None
        self._has_reported_end = False
        self._credit = OwnerCredit()
        self._scheduler = SessionScheduler(options.sessions)
        self._account = SessionAccount()
        self._links: dict[int, SessionLink] = {}  # least recently served first
        self._last_number = 0
        self._refused_since = math.inf  # since when all requests for a session were refused
        self._states: StateCopier | NoStates = (
            StateCopier(pool, key, self.mark, options) if options.state_entity else NoStates()
        )

    # ---- the port

    @property
    def clock_offset_ms(self) -> int | None:
        """The wall time of the namespace minus monotonic time, in ms; None while unknown."""
        return self._clock.offset_ms

    def poll(self, now: float) -> Sequence[SourceEvent]:
        """The events since the last call; renews locks that are due."""
        events: list[SourceEvent] = []
        self.check_time(now)
        client = self.client
        if client is not None and self.fault is None and self.step in (Step.ATTACHING, Step.ATTACHED):
            try:
                self._work(client, events, now)
            except IsthmusError as error:
                self.fail(error)
        if self.fault is not None:
            self._lost(self.fault, events, now)
        if self._credit.draining and self._is_drained():
            events.append(Drained())
            self._credit.drained()
            self._refill(now)
        return events

    def deadline(self, now: float) -> float:
        """When `poll` has work even without socket activity."""
        due = self.step_deadline(now)
        if self.step in (Step.ATTACHING, Step.ATTACHED):
            due = min(due, self._node.deadline())
        if self.step is not Step.ATTACHED:
            return due
        lock_seconds = self._clock.renewal_seconds
        due = min([due, *(link.deadline(lock_seconds) for link in self._links.values())])
        due = min(due, self._scheduler.deadline(self._locked(), self._capacity, now), self._states.deadline(now))
        return min(due, self._present.deadline()) if self._present is not None else due

    def grant(self, credit: int) -> None:
        """Sets the credit."""
        self._credit.grant(credit)
        self._refill(time.monotonic())
        self.mark()

    def drain(self) -> None:
        """Withdraws the credit."""
        self._credit.drain()
        for link in self._locked_links():
            link.receiver.drain()
        self.mark()

    def settle(self, first: int, last: int, disposition: Disposition | None = None) -> None:
        """Settles delivered positions."""
        state = None
        if disposition is not None:
            state = outcome_of(disposition.kind, disposition.reason, disposition.description)
        self._settle(first, last, state, completes=state is None)

    def release(self, first: int, last: int) -> None:
        """Releases delivered positions."""
        self._settle(first, last, Released(), completes=False)

    def close(self) -> None:
        """Closes it: its sessions are available at once, and so are the messages that were locked in them."""
        self.pool.unmark(self.key)
        self.release(0, _LAST_POSITION)
        self._end_links(time.monotonic())
        self._states.close(time.monotonic())
        self.disconnect(time.monotonic())

    @property
    def has_left(self) -> bool:
        """True: another source may open at once, because it gets a session only when this one has released it."""
        return True

    # ---- the links

    def attach(self, client: Client) -> None:
        """Begins: links follow as sessions are requested."""
        self.mark()

    def _work(self, client: Client, events: list[SourceEvent], now: float) -> None:
        for _ in self._node.advance(now, client):
            if self._present is not None:
                self._present.peeked(now)
        if self.step is Step.ATTACHING:
            query = self._present.begin(now) if self._present is not None else None
            self._node.run(query)
            if query is not None:
                return
            self.attached()
            self._states.opened(client)
            events.append(SourceOpened(client.namespace_id))
        for link in list(self._links.values()):
            # First: the last settlements of a lost link are known then, if its messages are redelivered over another.
            link.check_time(now)
            if link.error is not None:
                self._link_lost(link, link.error, now)
        for link in list(self._links.values()):
            self._serve(link, events, now)
        management = partial(self._node.management, client)
        view = SourceView(client, management, self._account.unsettled_of, self._clock.wall_ms(now))
        events += self._states.advance(view, now)
        self._check_present(events, now)
        self._release_sessions(now)
        self._ask(client, now)
        lock_seconds = self._clock.renewal_seconds
        for link in self._locked_links():
            link.renew(now, lock_seconds, management)
        self._refill(now)

    def _serve(self, link: SessionLink, events: list[SourceEvent], now: float) -> None:
        receiver = link.receiver
        if link.locked is None:
            if not receiver.attached:
                return
            link.granted(now)
            self._refused_since = math.inf
            self._scheduler.granted()
        for run in receiver.take():
            self._arrived(link, run, events, now)
        link.update(self._account.unsettled_of(link.number))

    def _arrived(self, link: SessionLink, run: Deliveries, events: list[SourceEvent], now: float) -> None:
        locked = link.locked
        assert locked is not None
        try:
            sequences = sequences_of(run.payloads)
        except UNREADABLE as error:
            raise ProtocolError(f"'{self.path}': a delivery cannot be read: {error}") from None
        self._states.arrived(link.number, link.session_id)
        self._clock.read(run.payloads, now)
        if not self._has_learned:
            self._has_learned = True
            self._clock.learn(run.payloads[0])
        locked.quiet_since, locked.has_sent = now, True
        for first, part in self._present_parts(link, run.first_id, sequences, run.payloads):
            positions, payloads, again = self._account.admit(link.number, first, *part, now)
            for span in again:
                self._dispose(span, None)
            if positions:
                self._credit.given(len(positions))
                if self._present is not None:
                    self._present.given(positions, now)
                events.append(Arrived(positions, payloads))

    def _present_parts(
        self, link: SessionLink, first_id: int, sequences: Sequence[int], payloads: Sequence[bytes]
    ) -> list[tuple[int, tuple[Sequence[int], Sequence[bytes]]]]:
        """The parts of a run that belong to the existing messages, by the first delivery id; the others are released."""
        belong = self._present.belong(sequences) if self._present is not None else True
        if belong is True:
            return [(first_id, (sequences, payloads))]
        # Its next message is a later one: it is released, and others are requested a little later, so that it is not offered again at once.
        if link.locked is not None and not link.locked.is_leaving:
            link.locked.is_leaving = True
            link.receiver.drain()
            self._scheduler.refused(time.monotonic(), QUIET_SECONDS)
        parts: list[tuple[int, tuple[Sequence[int], Sequence[bytes]]]] = []
        for at in range(len(payloads)):
            if belong and belong[at]:
                parts.append((first_id + at, (sequences[at : at + 1], payloads[at : at + 1])))
            else:
                self._dispose(Span(link.number, first_id + at, first_id + at), Released())
        return parts

    def _link_lost(self, link: SessionLink, error: IsthmusError, now: float) -> None:
        """I3: a session is lost, or a request for one failed.

        Raises:
            IsthmusError: no message of the source can be read any more.
        """
        if not link.is_lost_alone(error):
            raise error
        is_request = link.locked is None
        is_over = is_request and isinstance(error, OperationTimeoutError)  # no session was available in time
        if is_over and link.fault is not None:
            raise error  # the request was not even sent
        if is_request and not is_over:
            self._refused_since = min(self._refused_since, now)
            if now - self._refused_since > REFUSED_SECONDS:
                raise error
        elif is_request:
            self._refused_since = math.inf
        del self._links[link.number]
        self._account.link_lost(link.number, now)
        self._states.link_lost(link.number)
        self._scheduler.refused(now, 0.0 if is_over else RETRY_SECONDS)
        link.close()

    def _release_sessions(self, now: float) -> None:
        """Releases sessions whose time is over."""
        leaving = self._scheduler.leaving(self._locked(), self._capacity, now)
        for link in self._locked_links():
            locked = link.locked
            assert locked is not None
            if any(each is locked for each in leaving):
                locked.is_leaving = True
                link.receiver.drain()
            link.update(self._account.unsettled_of(link.number))
            if not locked.may_close or link.receiver.arrived:
                continue
            if self._states.may_release(link.number, now):
                del self._links[link.number]
                self._account.link_closed(link.number, now)
                link.close()
                self._states.released(link.number)

    def _ask(self, client: Client, now: float) -> None:
        """Requests sessions."""
        if self._present is not None and self._present.is_over:
            return
        locked = self._locked()
        for _ in range(self._scheduler.requests(locked, len(self._links) - len(locked), self._capacity, now)):
            self._last_number += 1
            self._links[self._last_number] = SessionLink(self._last_number, self.mark, client, self.path, now)

    def _check_present(self, events: list[SourceEvent], now: float) -> None:
        present = self._present
        if present is None or self._has_reported_end:
            return
        if not present.is_over:
            is_idle = not self._account.unsettled and not self._credit.draining and self._credit.left > 0
            self._node.run(present.check(now, self._clock.wall_ms(now), is_idle=is_idle))
        if present.is_over and self._states.may_end(now, is_settled=not self._account.unsettled):
            self._has_reported_end = True
            events += (*self._states.last_news(), Exhausted())

    # ---- credit

    @property
    def _capacity(self) -> int:
        """Messages that may be in flight, by the owner's present credit."""
        return self._credit.left + self._account.unsettled

    def _locked_links(self) -> list[SessionLink]:
        return [link for link in self._links.values() if link.locked is not None]

    def _locked(self) -> list[LockedSession]:
        return [link.locked for link in self._links.values() if link.locked is not None]

    def _refill(self, now: float) -> None:
        """Distributes the owner's unused grant."""
        if self.step is not Step.ATTACHED or self.fault is not None or self._credit.draining:
            return
        if self._present is not None and self._present.is_over:
            return
        links = self._locked_links()
        for link in links:
            link.update(self._account.unsettled_of(link.number))
        transit = sum(len(run.tags) for link in links for run in link.receiver.arrived)
        locked = [link.locked for link in links if link.locked is not None]
        for link, share in zip(links, shares(locked, self._credit.left - transit, self._scheduler.most), strict=True):
            if share and link.locked is not None and link.error is None:
                if not link.receiver.credit:
                    link.locked.quiet_since = now
                link.receiver.grant(share)
                link.locked.credit = share
                self._links[link.number] = self._links.pop(link.number)
        self._clock.credit(sum(link.receiver.credit for link in links), now)

    def _is_drained(self) -> bool:
        if self.step is not Step.ATTACHED:
            return True
        return all(not link.receiver.credit and not link.receiver.arrived for link in self._locked_links())

    # ---- settling

    def _settle(self, first: int, last: int, state: Any, *, completes: bool) -> None:
        spans = self._account.settle(first, last, time.monotonic(), completes=completes)
        for span in spans:
            self._dispose(span, state)
        if any(link.locked is not None and link.locked.is_leaving for link in self._links.values()):
            self.mark()

    def _dispose(self, span: Span, state: Any) -> None:
        link = self._links.get(span.link)
        if link is not None and link.receiver.client.error is None:
            link.receiver.dispose(span.first_id & MASK32, span.last_id & MASK32, state)

    # ---- the end of the connection

    def _lost(self, error: IsthmusError, events: list[SourceEvent], now: float) -> None:
        is_fatal = not may_pass(error)
        self._end_links(now)
        if is_fatal:
            self._account.forget()
        self.disconnect(now)
        if self._credit.draining:
            events.append(Drained())
        self._credit = OwnerCredit()
        events.append(SourceLost(str(error), is_fatal))

    def _end_links(self, now: float) -> None:
        self._node.link_lost()
        self._states.source_lost()
        if self._present is not None:
            self._present.link_lost()
        links, self._links = list(self._links.values()), {}
        self._account.connection_lost(now)
        for link in links:
            link.close()
        self._scheduler.refused(-math.inf)
        self._refused_since = math.inf
