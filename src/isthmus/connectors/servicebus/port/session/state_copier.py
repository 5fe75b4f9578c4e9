"""`session_state: copy` of one source: the copying of session states, separate from the messages.

What it is: requests the state of each session that the route has locked, over its link; reads those of others over separate links;
has them set at the target; queries periodically for states that were set without messages; and records in a file which were copied and
which are due. What it is not: the decisions (`state_copy`), or the messages (`source`), which wait here only for an answer
of their own namespace, `RELEASE_SECONDS` at most.

Order, by which a kill at any time loses no state: a session is noted as due before its first message of a lock period is passed on; its
state is read; its messages are settled; a first state is noted as tried; the state is set at the target; the session is noted as copied.

Invariants:
    I1. No error here fails the source: it is reported in `note`, and the operation retried.
    I2. A session that was due when the process died is due when the next one opens the file.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from isthmus.amqp.types import Int, Timestamp
from isthmus.bridge.port import Noted
from isthmus.connectors.servicebus.port.connection import remote_of
from isthmus.connectors.servicebus.port.option import PortSourceOptions
from isthmus.connectors.servicebus.port.pool import ConnectionPool
from isthmus.connectors.servicebus.port.session.state_copy import Copied, StateCopies, digest_of
from isthmus.connectors.servicebus.port.session.state_link import StateLink, reads, start_get, state_in
from isthmus.connectors.servicebus.port.session.state_memory import StateMemory
from isthmus.connectors.servicebus.port.session.state_target import StateTarget
from isthmus.errors import IsthmusError
from isthmus.transport import Client, Management, Reply

__all__ = ["READS_AT_ONCE", "NoStates", "SourceView", "StateCopier"]

READS_AT_ONCE = 8
# How long a releasable session is kept for the answer about its state.
RELEASE_SECONDS = 5.0
# How often to query for states that were set without a message, from how long before the last query on, because clocks may differ, and the
# page size.
QUERY_SECONDS = 60.0
OVERLAP_MS = 120_000
PAGE = 500
ANSWER_SECONDS = 30.0
# How long a route that moves existing messages waits at its end for states that are not at the target yet.
END_SECONDS = 10.0


class SourceView(NamedTuple):
    """The parts of a source that reading states needs.

    Attributes:
        client: its connection.
        management: returns its node.
        unsettled_of: how many messages of a link are unsettled.
        wall_ms: the wall time of its namespace.
    """

    client: Client
    management: Callable[[], Management]
    unsettled_of: Callable[[int], int]
    wall_ms: int


class NoStates:
    """The implementation for a source whose states are not copied."""

    def opened(self, client: Client) -> None:
        """Does nothing."""

    def arrived(self, link: int, session_id: str) -> None:
        """Does nothing."""

    def may_release(self, link: int, now: float) -> bool:
        """Always True."""
        return True

    def released(self, link: int) -> None:
        """Does nothing."""

    def link_lost(self, link: int) -> None:
        """Does nothing."""

    def source_lost(self) -> None:
        """Does nothing."""

    def close(self, now: float) -> None:
        """Does nothing."""

    def advance(self, source: SourceView, now: float) -> list[Noted]:
        """Returns no notes."""
        return []

    def deadline(self, now: float) -> float:
        """Never."""
        return math.inf

    def may_end(self, now: float, *, is_settled: bool) -> bool:
        """Always True."""
        return True

    def last_news(self) -> list[Noted]:
        """Returns no notes."""
        return []


@dataclass(slots=True, eq=False)
class _LockPeriod:
    """A session that a link of the source has locked, with at least one received message."""

    session_id: str
    reply: Reply | None = None
    is_read: bool = False
    is_done: bool = False
    release_by: float = math.inf


class StateCopier:
    """The states of one source.

    Args:
        pool: the pool of the source.
        key: the key of the source.
        mark: called when there is work.
        options: the options of the source.
    """

    def __init__(self, pool: ConnectionPool, key: int, mark: Callable[[], None], options: PortSourceOptions) -> None:
        self._path, self._mark = options.entity.strip("/"), mark
        target = options.state_target()
        self._target_path = target.entity.strip("/")
        self._target = StateTarget(pool, key, self._target_path, remote_of(target))
        self._memory = StateMemory(Path(options.state_file))
        self._copies = StateCopies({})
        self._of: str | None = None  # identity of the source that the memory belongs to
        self._to: str | None = None
        self._periods: dict[int, _LockPeriod] = {}
        self._reads: dict[str, StateLink] = {}
        self._query: Reply | None = None
        self._query_skip = self._query_began_ms = 0
        self._query_at, self._query_by = -math.inf, math.inf
        self._query_text = self._memory_text = self._last_note = ""
        self._end_by = math.inf

    # ---- calls of the source

    def opened(self, client: Client) -> None:
        """The source is open."""
        if self._of == client.namespace_id:
            return
        self._of, self._to = client.namespace_id, None
        self._remember(partial(self._memory.open, client.namespace_id, self._path))
        self._copies = StateCopies(self._memory.copied, self._memory.due, self._memory.tried)

    def arrived(self, link: int, session_id: str) -> None:
        """A message of a session arrives over the link that has it locked; called before it is passed on."""
        if link in self._periods:
            return
        self._periods[link] = _LockPeriod(session_id)
        if (read := self._reads.pop(session_id, None)) is not None:
            read.close()
        if self._copies.lock_granted(session_id):
            self._remember(partial(self._memory.note_due, session_id))

    def may_release(self, link: int, now: float) -> bool:
        """Whether no more requests are to be made over a link."""
        period = self._periods.get(link)
        if period is None or period.is_read or not self._target.is_ready:
            return True
        period.release_by = min(period.release_by, now + RELEASE_SECONDS)
        return now >= period.release_by

    def released(self, link: int) -> None:
        """A session whose messages are all settled was released."""
        period = self._periods.pop(link, None)
        if period is not None:
            self._copies.settled(period.session_id)

    def link_lost(self, link: int) -> None:
        """A session was lost."""
        period = self._periods.pop(link, None)
        if period is not None:
            self._copies.lost(period.session_id)

    def source_lost(self) -> None:
        """The connection to the source is lost or closed."""
        for link in list(self._periods):
            self.link_lost(link)
        self._end_reads()
        self._query = None
        self._last_note = ""  # the loss replaces the last note

    def close(self, now: float) -> None:
        """Closes it; due sessions stay so in the file."""
        self.source_lost()
        self._target.close(now)
        self._memory.close()

    # ---- the loop

    def advance(self, source: SourceView, now: float) -> list[Noted]:
        """Continues; returns notes for an operator, where they have changed.

        Raises:
            IsthmusError: the connection to the source is lost.
        """
        self._advance(source, now)
        return self._news(self.note)

    def _advance(self, source: SourceView, now: float) -> None:
        is_connected = self._target.poll(now)
        for attempt, text in self._target.take():
            if text:
                self._copies.not_set(attempt, text, now)
            else:
                self._note(self._copies.was_set(attempt))
        if not is_connected:
            self._copies.target_lost()
        if not self._target.is_ready:
            self._end_reads()  # while it waited for the target, the session would be kept from its receivers
            return
        self._check_target()
        for link, period in self._periods.items():
            self._read_locked(period, source.management, now)
            if period.is_read and not period.is_done and not source.unsettled_of(link):
                period.is_done = True
                self._copies.settled(period.session_id)
        self._query_changes(
            source.management, source.wall_ms, now
        )  # before the reads: nothing else would wake the loop for it
        self._read_others(source.client, source.management, now)
        states, done = self._copies.to_set(self._target.room, now)
        for state in states:
            if state.is_first:  # a kill may occur between the answer and its note
                self._remember(partial(self._memory.note_tried, state.session_id, digest_of(state.state)))
            self._target.set(state, now)
        for each in done:
            self._note(each)
            self._mark()  # there may be room now to read others

    def deadline(self, now: float) -> float:
        """When there is work even without events."""
        due = min(self._target.deadline(now), self._end_by)
        if not self._target.is_ready:
            return due
        due = min(due, self._copies.deadline(), self._query_at if self._query is None else self._query_by)
        due = min([due, *(each.release_by for each in self._periods.values() if each.release_by > now)])
        return min([due, *(each.limit for each in self._reads.values())])

    @property
    def is_done(self) -> bool:
        """Whether no session is due, as far as is known."""
        has_queried = self._query is None and self._query_at > -math.inf
        return self._copies.is_done and (has_queried or bool(self._target.text))

    def may_end(self, now: float, *, is_settled: bool) -> bool:
        """Whether a route that moves existing messages need not wait for states: they are at the target, or it has waited."""
        if self.is_done and is_settled:
            self._end_by = math.inf
            return True
        self._end_by = min(self._end_by, now + END_SECONDS)
        return now >= self._end_by

    def last_news(self) -> list[Noted]:
        """Notes for an operator at the end of such a route: which states are not copied."""
        self._end_by = math.inf
        return self._news(self.left)

    def _news(self, text: str) -> list[Noted]:
        before, self._last_note = self._last_note, text
        return [] if text == before else [Noted(text)]

    @property
    def left(self) -> str:
        """The states that are not copied, for an operator; empty where none is due."""
        return self.note or self._copies.left

    @property
    def note(self) -> str:
        """Why states are not copied, for an operator; empty where there is no reason."""
        if self._memory_text:
            return f"session states are copied again after a restart: {self._memory_text}"
        if self._target.text:
            return f"session states are not copied: {self._target.text}"
        return self._copies.note or self._query_text

    # ---- parts

    def _end_reads(self) -> None:
        """Releases the sessions that are read over separate links."""
        if self._reads:
            reads, self._reads = self._reads, {}
            for read in reads.values():
                read.close()
            self._copies.source_lost()

    def _check_target(self) -> None:
        """Where the target has changed, nothing was copied to it."""
        identity = self._target.identity
        if self._to != identity:
            self._to = identity
            if self._memory.is_other_target(identity, self._target_path):
                self._copies.forget_copied()
                self._query_at = -math.inf
            self._remember(partial(self._memory.note_target, identity, self._target_path))

    def _read_locked(self, period: _LockPeriod, management: Callable[[], Management], now: float) -> None:
        if period.is_read:
            return
        reply = period.reply
        if reply is None:
            period.reply = start_get(management(), period.session_id)
            period.reply.when_done(self._mark)
        elif reply.done:
            # If it is refused, the session's lock is lost, or it is read over a separate link later.
            period.is_read = True
            if reply.error is None:
                self._copies.read(period.session_id, state_in(reply), now)

    def _read_others(self, client: Client, management: Callable[[], Management], now: float) -> None:
        for session_id, link in list(self._reads.items()):
            if not link.advance(now, management):
                continue
            del self._reads[session_id]
            error, reply = link.error, link.reply
            link.close()
            if error is None and reply is not None:
                self._copies.read(session_id, state_in(reply), now)
            else:
                taken = f"another receiver has it locked at the source, '{self._path}'"
                self._copies.failed(session_id, taken if link.is_taken else f"at the source: {error}", now)
        for session_id in self._copies.to_read(READS_AT_ONCE - len(self._reads), now):
            ask = reads(session_id)
            self._reads[session_id] = StateLink(session_id, ask, self._mark, client, self._path, now)

    def _query_changes(self, management: Callable[[], Management], wall_ms: int, now: float) -> None:
        """Queries the sessions whose state was set since the last query, in pages."""
        reply = self._query
        if reply is None:
            if now < self._query_at:
                return
            self._query_skip, self._query_began_ms = 0, wall_ms
        elif not reply.done and now < self._query_by:
            return
        elif reply.error is not None or not reply.done:
            why = reply.error or f"no answer within {ANSWER_SECONDS:g} s"
            self._query_text = f"session states that are set without a message are not detected: {why}"
            self._query, self._query_at = None, now + QUERY_SECONDS
            return
        else:
            self._query_text = ""
            found = _sessions_in(reply)
            locked = {each.session_id for each in self._periods.values()}
            for session_id in found:
                if session_id not in locked and self._copies.changed(session_id):
                    self._remember(partial(self._memory.note_due, session_id))
            self._query_skip += len(found)
            if len(found) < PAGE:
                self._remember(partial(self._memory.note_queried, self._query_began_ms - OVERLAP_MS))
                self._query, self._query_at = None, now + QUERY_SECONDS
                return
        body = {
            "last-updated-time": Timestamp(self._memory.queried_ms),
            "skip": Int(self._query_skip),
            "top": Int(PAGE),
        }
        self._query, self._query_by = management().start("get-message-sessions", body), now + ANSWER_SECONDS
        self._query.when_done(self._mark)

    def _note(self, copied: Copied) -> None:
        note = partial(self._memory.note_copied, copied.session_id, copied.digest, is_due=copied.is_due)
        self._remember(note)

    def _remember(self, note: Callable[[], None]) -> None:
        try:
            note()
            self._memory_text = ""
        except IsthmusError as error:
            self._memory_text = str(error)


def _sessions_in(reply: Reply) -> list[str]:
    body = reply.body
    return [str(each) for each in body.get("sessions-ids") or ()] if isinstance(body, dict) else []
