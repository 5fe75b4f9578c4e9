"""`session_state: copy` of one source: what is done about the states of its sessions beside the way of messages.

What it is: asks for the state of each session that the route holds, over the link that holds it; reads those of others over links of their
own; has them set at the target; looks from time to time for states that were set without messages; and keeps in a file what was copied and
what is due. What it is not: the decisions (`state_copy`), or the way of messages (`source`), which waits for nothing here but for an answer
of its own namespace, `GIVE_BACK_SECONDS` at most.

Order, by which a kill at any instant loses no state: a session is noted as due before its first message of a hold is handed on; its state
is read; its messages are settled; a first state is noted as tried; the state is set at the target; the session is noted as copied.

Invariants:
    I1. Nothing here fails the source: what goes wrong is told in `note`, and tried again.
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
from isthmus.connectors.servicebus.port.connection import peer_of
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
# How long a session that could be given back is kept for the answer about its state.
GIVE_BACK_SECONDS = 5.0
# How often states are looked for that were set without a message, from how long before the last look on, as clocks may be apart, and how
# many names come at once.
LOOK_SECONDS = 60.0
OVERLAP_MS = 120_000
PAGE = 500
ANSWER_SECONDS = 30.0
# How long the end of a route that moves what is there waits for states that are not at the target yet.
END_SECONDS = 10.0


class SourceView(NamedTuple):
    """What a source has for the reading of states.

    Attributes:
        client: its connection.
        management: gives its node.
        unsettled_of: how many messages of a link are not settled.
        wall_ms: the wall time of its namespace.
    """

    client: Client
    management: Callable[[], Management]
    unsettled_of: Callable[[int], int]
    wall_ms: int


class NoStates:
    """For a source whose states are not copied."""

    def opened(self, client: Client) -> None:
        """Nothing is asked."""

    def arrived(self, link: int, session_id: str) -> None:
        """Nothing is noted."""

    def may_give_back(self, link: int, now: float) -> bool:
        """Nothing is to be asked over a link."""
        return True

    def given_back(self, link: int) -> None:
        """Nothing is noted."""

    def link_lost(self, link: int) -> None:
        """Nothing is noted."""

    def source_lost(self) -> None:
        """Nothing was under way."""

    def close(self, now: float) -> None:
        """There is nothing to end."""

    def advance(self, source: SourceView, now: float) -> list[Noted]:
        """There is nothing to do."""
        return []

    def deadline(self, now: float) -> float:
        """Never."""
        return math.inf

    def may_end(self, now: float, *, is_settled: bool) -> bool:
        """Nothing keeps a route from its end."""
        return True

    def last_news(self) -> list[Noted]:
        """There is nothing to tell."""
        return []


@dataclass(slots=True, eq=False)
class _Hold:
    """A session that a link of the source holds, of which messages came."""

    session_id: str
    reply: Reply | None = None
    is_read: bool = False
    is_done: bool = False
    give_back_by: float = math.inf


class StateCopier:
    """The states of one source.

    Args:
        pool: what the source belongs to.
        key: of the source.
        mark: called when there is something to do.
        options: of the source.
    """

    def __init__(self, pool: ConnectionPool, key: int, mark: Callable[[], None], options: PortSourceOptions) -> None:
        self._path, self._mark = options.entity.strip("/"), mark
        target = options.state_target()
        self._target_path = target.entity.strip("/")
        self._target = StateTarget(pool, key, self._target_path, peer_of(target))
        self._memory = StateMemory(Path(options.state_file))
        self._copies = StateCopies({})
        self._of: str | None = None  # identity of the source that the memory is about
        self._to: str | None = None
        self._holds: dict[int, _Hold] = {}
        self._reads: dict[str, StateLink] = {}
        self._look: Reply | None = None
        self._look_skip = self._look_began_ms = 0
        self._look_at, self._look_by = -math.inf, math.inf
        self._look_text = self._memory_text = self._told = ""
        self._end_by = math.inf

    # ---- what the source tells

    def opened(self, client: Client) -> None:
        """The source is open."""
        if self._of == client.namespace_id:
            return
        self._of, self._to = client.namespace_id, None
        self._remember(partial(self._memory.open, client.namespace_id, self._path))
        self._copies = StateCopies(self._memory.copied, self._memory.due, self._memory.tried)

    def arrived(self, link: int, session_id: str) -> None:
        """A message of a session comes over a link that holds it; called before it is handed on."""
        if link in self._holds:
            return
        self._holds[link] = _Hold(session_id)
        if (read := self._reads.pop(session_id, None)) is not None:
            read.close()
        if self._copies.held(session_id):
            self._remember(partial(self._memory.note_due, session_id))

    def may_give_back(self, link: int, now: float) -> bool:
        """Whether nothing more is to be asked over a link."""
        hold = self._holds.get(link)
        if hold is None or hold.is_read or not self._target.is_ready:
            return True
        hold.give_back_by = min(hold.give_back_by, now + GIVE_BACK_SECONDS)
        return now >= hold.give_back_by

    def given_back(self, link: int) -> None:
        """A session whose messages are all settled was given back."""
        hold = self._holds.pop(link, None)
        if hold is not None:
            self._copies.settled(hold.session_id)

    def link_lost(self, link: int) -> None:
        """A session was lost."""
        hold = self._holds.pop(link, None)
        if hold is not None:
            self._copies.lost(hold.session_id)

    def source_lost(self) -> None:
        """The connection to the source is gone, or is left."""
        for link in list(self._holds):
            self.link_lost(link)
        self._end_reads()
        self._look = None
        self._told = ""  # the loss takes the place of what was told

    def close(self, now: float) -> None:
        """Ends it; what is due stays so in the file."""
        self.source_lost()
        self._target.close(now)
        self._memory.close()

    # ---- the loop

    def advance(self, source: SourceView, now: float) -> list[Noted]:
        """Goes on; what an operator should know, where that has changed.

        Raises:
            IsthmusError: the connection to the source is lost.
        """
        self._advance(source, now)
        return self._news(self.note)

    def _advance(self, source: SourceView, now: float) -> None:
        stands = self._target.poll(now)
        for told, text in self._target.take():
            if text:
                self._copies.not_set(told, text, now)
            else:
                self._note(self._copies.was_set(told))
        if not stands:
            self._copies.target_lost()
        if not self._target.is_ready:
            self._end_reads()  # while it waited for the target a session would be kept from its receivers
            return
        self._check_target()
        for link, hold in self._holds.items():
            self._read_held(hold, source.management, now)
            if hold.is_read and not hold.is_done and not source.unsettled_of(link):
                hold.is_done = True
                self._copies.settled(hold.session_id)
        self._look_for_changes(
            source.management, source.wall_ms, now
        )  # before the reading: nothing else would wake the loop for it
        self._read_others(source.client, source.management, now)
        states, done = self._copies.to_set(self._target.room, now)
        for state in states:
            if state.is_first:  # a kill may come between the answer and its note
                self._remember(partial(self._memory.note_tried, state.session_id, digest_of(state.state)))
            self._target.set(state, now)
        for each in done:
            self._note(each)
            self._mark()  # there may be room now to read others

    def deadline(self, now: float) -> float:
        """When there is something to do though nothing came."""
        due = min(self._target.deadline(now), self._end_by)
        if not self._target.is_ready:
            return due
        due = min(due, self._copies.deadline(), self._look_at if self._look is None else self._look_by)
        due = min([due, *(each.give_back_by for each in self._holds.values() if each.give_back_by > now)])
        return min([due, *(each.limit for each in self._reads.values())])

    @property
    def is_done(self) -> bool:
        """Whether no session is due, as far as can be known."""
        has_looked = self._look is None and self._look_at > -math.inf
        return self._copies.is_done and (has_looked or bool(self._target.text))

    def may_end(self, now: float, *, is_settled: bool) -> bool:
        """Whether a route that moves what is there need not wait for states: they are at the target, or it has waited."""
        if self.is_done and is_settled:
            self._end_by = math.inf
            return True
        self._end_by = min(self._end_by, now + END_SECONDS)
        return now >= self._end_by

    def last_news(self) -> list[Noted]:
        """What an operator should know at the end of such a route: what is not copied."""
        self._end_by = math.inf
        return self._news(self.left)

    def _news(self, text: str) -> list[Noted]:
        before, self._told = self._told, text
        return [] if text == before else [Noted(text)]

    @property
    def left(self) -> str:
        """What is not copied, for an operator; empty where nothing is due."""
        return self.note or self._copies.left

    @property
    def note(self) -> str:
        """What keeps states from being copied, for an operator; empty where nothing does."""
        if self._memory_text:
            return f"session states are copied again after a restart: {self._memory_text}"
        if self._target.text:
            return f"session states are not copied: {self._target.text}"
        return self._copies.note or self._look_text

    # ---- parts

    def _end_reads(self) -> None:
        """Gives back the sessions that are read over links of their own."""
        if self._reads:
            reads, self._reads = self._reads, {}
            for read in reads.values():
                read.close()
            self._copies.source_lost()

    def _check_target(self) -> None:
        """To another target than before nothing was copied."""
        identity = self._target.identity
        if self._to != identity:
            self._to = identity
            if self._memory.is_other_target(identity, self._target_path):
                self._copies.forget_copied()
                self._look_at = -math.inf
            self._remember(partial(self._memory.note_target, identity, self._target_path))

    def _read_held(self, hold: _Hold, management: Callable[[], Management], now: float) -> None:
        if hold.is_read:
            return
        reply = hold.reply
        if reply is None:
            hold.reply = start_get(management(), hold.session_id)
            hold.reply.when_done(self._mark)
        elif reply.done:
            # Where it was refused, the session's lock is lost, or it is read over a link of its own later.
            hold.is_read = True
            if reply.error is None:
                self._copies.read(hold.session_id, state_in(reply), now)

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
                taken = f"another receiver holds it at the source, '{self._path}'"
                self._copies.failed(session_id, taken if link.is_taken else f"at the source: {error}", now)
        for session_id in self._copies.to_read(READS_AT_ONCE - len(self._reads), now):
            ask = reads(session_id)
            self._reads[session_id] = StateLink(session_id, ask, self._mark, client, self._path, now)

    def _look_for_changes(self, management: Callable[[], Management], wall_ms: int, now: float) -> None:
        """Asks for the sessions whose state was set since the last look, in pages."""
        reply = self._look
        if reply is None:
            if now < self._look_at:
                return
            self._look_skip, self._look_began_ms = 0, wall_ms
        elif not reply.done and now < self._look_by:
            return
        elif reply.error is not None or not reply.done:
            why = reply.error or f"no answer within {ANSWER_SECONDS:g} s"
            self._look_text = f"session states that are set without a message are not seen: {why}"
            self._look, self._look_at = None, now + LOOK_SECONDS
            return
        else:
            self._look_text = ""
            found = _sessions_in(reply)
            holds = {each.session_id for each in self._holds.values()}
            for session_id in found:
                if session_id not in holds and self._copies.changed(session_id):
                    self._remember(partial(self._memory.note_due, session_id))
            self._look_skip += len(found)
            if len(found) < PAGE:
                self._remember(partial(self._memory.note_looked, self._look_began_ms - OVERLAP_MS))
                self._look, self._look_at = None, now + LOOK_SECONDS
                return
        body = {
            "last-updated-time": Timestamp(self._memory.looked_ms),
            "skip": Int(self._look_skip),
            "top": Int(PAGE),
        }
        self._look, self._look_by = management().start("get-message-sessions", body), now + ANSWER_SECONDS
        self._look.when_done(self._mark)

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
