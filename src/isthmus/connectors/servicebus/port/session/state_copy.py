"""Which session states are read at the source and set at the target, and when.

What it is: the decisions of `session_state: copy`, from the results of reads and writes. What it is not: links (`state_link`), or the
file of copied states (`state_memory`).

Only the receiver of a session can change its state. A state that is read while the route has the session locked is therefore its state after
every message of that lock period. A session is *due* when its state may differ from the copied one: the route has it locked and messages of
it arrived, or its state was set since the last query. It stays due until its state was read and is at the target, also across restarts.

The state of a session that an application has locked at the target cannot be set. It is retried, with growing delays, and nothing else waits for it.

Invariants:
    I1. The state that was read last is set last: an older value is neither retried nor ends the due state.
    I2. A state that equals the last copied one is not set again, so that a state that an application has set at the target since is kept.
    I3. An empty state is set only where a non-empty one was copied before; where no state of a session was copied, an existing one of the target
        is kept: a route that lost its memory overwrites no state that an application has changed since. A state that the route may have set
        itself, in an attempt with unknown outcome, is not kept.
    I4. At most one state of a session is being set; waiting values take about `WAITING_BYTES` at most.
"""

from __future__ import annotations

import enum
import hashlib
import heapq
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["NOTHING", "WAITING_BYTES", "Copied", "StateCopies", "StateToSet", "digest_of"]

# A receiver at the target releases its session when its messages are settled, or after an idle time.
FIRST_RETRY_SECONDS = 0.5
LAST_RETRY_SECONDS = 15.0
# The states of so many bytes wait in memory; others are read again when they are due.
WAITING_BYTES = 16 << 20
# An error that has occurred so often, within some 8 s, is reported.
TOLD_ATTEMPTS = 5

_NONE_TRIED: Mapping[str, Collection[bytes]] = {}

NOTHING = b""
"""The digest of an empty state."""


def digest_of(state: bytes | None) -> bytes:
    """The digest by which states are compared; an empty state equals none."""
    return hashlib.blake2b(state, digest_size=16).digest() if state else NOTHING


class StateToSet(NamedTuple):
    """A state to set at the target; `number` identifies the attempt. `is_first`: only where the target has no state, or one of the digests
    `own`, which the route has tried to set.
    """

    session_id: str
    state: bytes | None
    number: int
    is_first: bool = False
    own: frozenset[bytes] = frozenset()


class Copied(NamedTuple):
    """The record of a session: the last copied state, and whether it is still due."""

    session_id: str
    digest: bytes
    is_due: bool


class _Phase(enum.Enum):
    """The next step."""

    HELD = "the route has the session locked, and its messages are not settled"
    READ = "its state has to be read over a separate link"
    SET = "its state has to be set"


@dataclass(slots=True, eq=False)
class _Session:
    session_id: str
    phase: _Phase
    state: bytes | None = None
    is_known: bool = False
    """Whether `state` was read."""
    is_reading: bool = False
    """Whether it is being read over a separate link."""
    number: int = 0
    """The attempt to set `state`; 0: none."""
    attempts: int = 0
    """The failed attempts since the session is due."""
    not_before: float = -math.inf
    text: str = ""


class StateCopies:
    """The sessions of one route.

    Args:
        copied: the digest of the last copied state, by session.
        due: sessions that are due.
        tried: by session without a copied state, the digests of states that the target was requested to set.
    """

    def __init__(
        self,
        copied: Mapping[str, bytes],
        due: Iterable[str] = (),
        tried: Mapping[str, Collection[bytes]] = _NONE_TRIED,
    ) -> None:
        self._copied = dict(copied)
        self._tried = {name: set(digests) for name, digests in tried.items()}
        self._due = {each: _Session(each, _Phase.READ) for each in due}
        # Sessions that may be due now, in their order, and later ones: checked when they are due.
        self._now: dict[_Session, None] = dict.fromkeys(self._due.values())
        self._later: list[tuple[float, int, _Session]] = []
        self._setting: set[str] = set()
        self._late: dict[str, _Session] = {}
        self._last_number = 0
        self._waiting_bytes = 0

    # ---- events

    def lock_granted(self, session_id: str) -> bool:
        """A message of a session that the route has locked arrived; returns whether it was not due before."""
        session = self._due.get(session_id)
        if session is None:
            self._due[session_id] = _Session(session_id, _Phase.HELD)
            return True
        self._forget_value(session)
        session.phase, session.is_reading = _Phase.HELD, False
        return False

    def changed(self, session_id: str) -> bool:
        """The state of a session was set; returns whether it was not due before."""
        due = self._due.get(session_id)
        if due is not None:
            if due.phase is _Phase.SET:  # perhaps after it was read; while it waits no later query may report it
                self._forget_value(due)
                due.phase = _Phase.READ
                self._queue(due)
            return False
        session = self._due[session_id] = _Session(session_id, _Phase.READ)
        self._now[session] = None
        return True

    def read(self, session_id: str, state: bytes | None, now: float) -> None:
        """The state of a session was read; where the route has it locked, it is set when the messages are settled."""
        session = self._due.get(session_id)
        if session is None:
            return
        self._forget_value(session)
        if self._waiting_bytes and self._waiting_bytes + len(state or b"") > WAITING_BYTES:
            self.failed(session_id, "the states of many other sessions wait", now)
            return
        session.state, session.is_known, session.is_reading = state or None, True, False
        self._waiting_bytes += len(state or b"")
        if session.phase is _Phase.READ:
            session.phase = _Phase.SET
            self._queue(session)

    def settled(self, session_id: str) -> None:
        """All messages of a session that the route has locked are settled, or the route has released it."""
        session = self._due.get(session_id)
        if session is not None and session.phase is _Phase.HELD:
            session.phase = _Phase.SET if session.is_known else _Phase.READ
            self._queue(session)

    def lost(self, session_id: str) -> None:
        """The route has lost a session: the state that it read may be older than one that the next receiver sets."""
        session = self._due.get(session_id)
        if session is not None and session.phase is _Phase.HELD:
            self._forget_value(session)
            session.phase = _Phase.READ
            self._queue(session)

    def was_set(self, attempt: StateToSet) -> Copied:
        """The target has set a state, or has one already that is kept (I3)."""
        session_id, digest = attempt.session_id, digest_of(attempt.state)
        self._setting.discard(session_id)
        self._tried.pop(session_id, None)
        if digest == NOTHING:
            self._copied.pop(session_id, None)
        else:
            self._copied[session_id] = digest
        session = self._due.get(session_id)
        if session is not None and session.number == attempt.number:
            self._end(session)
            return Copied(session_id, digest, is_due=False)
        if session is not None:
            self._queue(session)
        return Copied(session_id, digest, is_due=session is not None)

    def not_set(self, attempt: StateToSet, text: str, now: float) -> None:
        """The target has not set a state, as far as is known; the last one read is tried again."""
        self._setting.discard(attempt.session_id)
        session = self._due.get(attempt.session_id)
        if session is not None and not session.is_reading:  # else another value is in progress
            self.failed(attempt.session_id, text, now)

    def failed(self, session_id: str, text: str, now: float) -> None:
        """A state could not be read, or set; it is retried. One that is being set still is."""
        session = self._due.get(session_id)
        if session is None:
            return
        session.is_reading, session.number = False, 0
        session.attempts += 1
        session.not_before = now + min(LAST_RETRY_SECONDS, FIRST_RETRY_SECONDS * 2.0 ** min(session.attempts - 1, 10))
        session.text = text
        if session.attempts >= TOLD_ATTEMPTS:
            self._late[session_id] = session
        if session.phase is _Phase.SET and self._has_much:
            self._forget_value(session)  # a state that cannot be set now must not keep others from being read
            session.phase = _Phase.READ
        self._queue(session)

    def source_lost(self) -> None:
        """The connection to the source is lost: pending reads are repeated."""
        for session in self._due.values():
            if session.is_reading:
                session.is_reading = False
                self._queue(session)

    def target_lost(self) -> None:
        """The connection to the target is lost: pending states are set again."""
        for session_id in self._setting:
            session = self._due.get(session_id)
            if session is not None:
                session.number = 0
                self._queue(session)
        self._setting.clear()

    def forget_copied(self) -> None:
        """Source or target has changed: nothing was copied."""
        self._copied.clear()
        self._tried.clear()

    # ---- next steps

    def to_read(self, room: int, now: float) -> list[str]:
        """The sessions to read over separate links, `room` at most; they count as being read."""
        found: list[str] = []
        for session in self._due_sessions(now):
            if len(found) >= room or self._has_much:
                break
            if session.phase is _Phase.READ and not session.is_reading:
                del self._now[session]
                session.is_reading = True
                found.append(session.session_id)
        return found

    def to_set(self, room: int, now: float) -> tuple[list[StateToSet], list[Copied]]:
        """The states to set, `room` at most, which count as being set; and the sessions that are no longer due (I2, I3)."""
        found: list[StateToSet] = []
        done: list[Copied] = []
        for session in self._due_sessions(now):
            if len(found) >= room:
                break
            if session.phase is not _Phase.SET or session.session_id in self._setting:
                continue
            copied = self._copied.get(session.session_id, NOTHING)
            digest, tried = digest_of(session.state), self._tried.get(session.session_id, ())
            if digest == copied and not tried:
                self._end(session)
                done.append(Copied(session.session_id, copied, is_due=False))
                continue
            del self._now[session]
            self._last_number += 1
            session.number = self._last_number
            self._setting.add(session.session_id)
            is_first = copied == NOTHING
            attempt = StateToSet(session.session_id, session.state, session.number, is_first, frozenset(tried))
            found.append(attempt)
            if is_first:
                self._tried.setdefault(session.session_id, set()).add(digest)
        return found, done

    def deadline(self) -> float:
        """When there may be work even without events; infinite where there is none."""
        return self._later[0][0] if self._later else math.inf

    @property
    def is_done(self) -> bool:
        """Whether no session is due."""
        return not self._due

    @property
    def note(self) -> str:
        """Why states are not copied, for an operator; empty where there is no reason."""
        return _note_of(self._late)

    @property
    def left(self) -> str:
        """The states that are not copied for any reason, for an operator; empty where none is due."""
        return _note_of(self._due)

    # ---- bookkeeping

    @property
    def _has_much(self) -> bool:
        return self._waiting_bytes >= WAITING_BYTES // 2

    def _due_sessions(self, now: float) -> list[_Session]:
        """The sessions that are due now."""
        while self._later and self._later[0][0] <= now:
            session = heapq.heappop(self._later)[2]
            if self._due.get(session.session_id) is session and session.not_before <= now:
                self._now[session] = None
        return list(self._now)

    def _queue(self, session: _Session) -> None:
        self._now.pop(session, None)
        if session.phase is _Phase.HELD:
            return
        if session.not_before == -math.inf:
            self._now[session] = None
        else:
            self._last_number += 1
            heapq.heappush(self._later, (session.not_before, self._last_number, session))

    def _end(self, session: _Session) -> None:
        self._forget_value(session)
        del self._due[session.session_id]
        self._now.pop(session, None)
        self._late.pop(session.session_id, None)

    def _forget_value(self, session: _Session) -> None:
        self._waiting_bytes -= len(session.state or b"")
        session.state, session.is_known, session.number = None, False, 0


def _note_of(sessions: Mapping[str, _Session]) -> str:
    session = next(iter(sessions.values()), None)
    if session is None:
        return ""
    others = f" and {len(sessions) - 1} more" if len(sessions) > 1 else ""
    why = f": {session.text}" if session.text else ""
    return f"the state of session '{session.session_id}'{others} is not copied yet{why}"
