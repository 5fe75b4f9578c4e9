"""The scheduling of sessions: which sessions a source accepts, how much each may send, and when it releases one for others.

What it is: the decisions, from the number of locked sessions and the recent activity of each. What it is not: links, locks, or the order
in which the source's system offers available sessions.

A source requests the next available session as long as it may lock one more, so while such a request waits, none is available: every session
that has messages is locked, here or elsewhere. When the source has as many as it may, others may wait: then a session that has no messages
is released at once, and the one that was locked longest when its time is over. A session of one message uses its slot for
some four round trips (request, credit, the target's acknowledgement, drain), so that many are locked concurrently.

A session whose message its target refuses cannot be released (I4). It uses no slot once its time is over: otherwise a route all of whose
sessions have such a message would never receive another message, by which its target shows that it accepts others. If these are refused, too, the
opening of the route ends, and releases all of them (docs/explanation/lease.md, Refused messages).

Invariants:
    I1. No more sessions are locked and requested than the limit, which is never more than the messages that may be in flight; at most
        `SPARE_SESSIONS` that have to be released, and cannot be, do not count.
    I2. While the limit is reached, no session is kept for ever: one at a time is released when its time is over, those without
        messages at once.
    I3. The shares of all sessions together do not exceed the credit, and a session that had none before is served first.
    I4. A session with messages in flight is not released: its order ends with its lock.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["QUIET_SECONDS", "SPARE_SESSIONS", "LockedSession", "SessionScheduler", "shares"]

# A waiting request costs the source's system an attach a minute. Each answer takes a round trip: at 60 ms, 8 concurrent requests are 133
# sessions a second, however few messages are in each.
MOST_REQUESTS = 64
# A session gets at most this part of the credit, so that few sessions are fast over a long distance, and the first ones leave some.
CREDIT_PARTS = 32
# A session that sent nothing for so long, although it may, is released: while others may wait, if it has sent something and if it has not,
# and otherwise. The messages of a session arrive together; the first of them needs a round trip.
SENT_SECONDS = 0.005
QUIET_SECONDS = 0.05
IDLE_SECONDS = 10.0
# How long a session is kept while others may wait.
SLICE_SECONDS = 3.0
# A session that has to be released, and has had messages in flight for so long, does not count any more; so many at most.
STUCK_SECONDS = 1.0
SPARE_SESSIONS = 16


@dataclass(slots=True, eq=False)
class LockedSession:
    """A session that the source has locked.

    Attributes:
        since: when it was accepted.
        quiet_since: when it last sent a message, or was granted credit after having none.
        credit: its outstanding credit.
        unsettled: its unsettled messages.
        is_leaving: whether it is being released.
        has_sent: whether any message arrived.
    """

    since: float
    quiet_since: float
    credit: int = 0
    unsettled: int = 0
    is_leaving: bool = False
    has_sent: bool = False

    @property
    def may_close(self) -> bool:
        """Whether it can be released now (I4)."""
        return self.is_leaving and not self.credit and not self.unsettled

    @property
    def stuck_at(self) -> float:
        """From when on it uses no slot although it is locked; infinite where it does."""
        is_waiting = self.is_leaving and not self.credit and self.unsettled
        return self.quiet_since + STUCK_SECONDS if is_waiting else math.inf


class SessionScheduler:
    """The scheduling of one source.

    Args:
        most: sessions that it may lock.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._requests = 1
        self._not_before = -math.inf

    def limit(self, capacity: int) -> int:
        """How many sessions may be locked; `capacity`: messages that may be in flight."""
        return min(self.most, max(0, capacity))

    def requests(self, sessions: Sequence[LockedSession], pending: int, capacity: int, now: float) -> int:
        """How many more sessions to request; `pending`: requested and not granted."""
        if now < self._not_before:
            return 0
        self._not_before = -math.inf
        locked, capacity = _counting(sessions, capacity, now)
        return max(0, min(self._requests, self.limit(capacity) - len(locked)) - pending)

    def granted(self) -> None:
        """A session was granted: more may be available."""
        self._requests = min(MOST_REQUESTS, self._requests * 2)

    def refused(self, now: float, delay_seconds: float = 0.0) -> None:
        """None was available, or none is granted now."""
        self._requests = 1
        self._not_before = now + delay_seconds

    def leaving(self, sessions: Sequence[LockedSession], capacity: int, now: float) -> list[LockedSession]:
        """The sessions to release from now on."""
        locked, capacity = _counting(sessions, capacity, now)
        is_full = len(locked) >= self.limit(capacity)
        is_short = is_full or self._is_short(locked, capacity)
        found = [
            each for each in locked if not each.is_leaving and _is_idle(each) and _leaves_at(each, is_short) <= now
        ]
        if is_full and not found and not any(each.is_leaving for each in locked):
            oldest = min(locked, key=lambda each: each.since, default=None)
            if oldest is not None and oldest.since <= now - SLICE_SECONDS:
                found.append(oldest)
        return found

    def deadline(self, sessions: Sequence[LockedSession], capacity: int, now: float) -> float:
        """When to call `leaving` and `requests` again even without events."""
        locked, capacity = _counting(sessions, capacity, now)
        is_full = len(locked) >= self.limit(capacity)
        is_short = is_full or self._is_short(locked, capacity)
        due = self._not_before if self._not_before > -math.inf else math.inf
        due = min([due, *(_leaves_at(each, is_short) for each in locked if not each.is_leaving and _is_idle(each))])
        due = min([due, *(each.stuck_at for each in locked if each.stuck_at > now)])
        if is_full and locked and not any(each.is_leaving for each in locked):
            due = min(due, min(each.since for each in locked) + SLICE_SECONDS)
        return due

    def _is_short(self, locked: Sequence[LockedSession], capacity: int) -> bool:
        """Whether locked or expected sessions get less credit than they could use."""
        if len(locked) <= CREDIT_PARTS:
            return False
        return capacity - sum(each.credit + each.unsettled for each in locked) <= self.most - len(locked)


def _counting(locked: Sequence[LockedSession], capacity: int, now: float) -> tuple[Sequence[LockedSession], int]:
    """The sessions that use a slot, and the messages that may be in flight in them and in others."""
    stuck = [each for each in locked if each.stuck_at <= now][:SPARE_SESSIONS]
    if not stuck:
        return locked, capacity
    return [each for each in locked if each not in stuck], capacity - sum(each.unsettled for each in stuck)


def _is_idle(session: LockedSession) -> bool:
    return session.credit > 0 and not session.unsettled


def _leaves_at(session: LockedSession, is_short: bool) -> float:
    if not is_short:
        return session.quiet_since + IDLE_SECONDS
    return session.quiet_since + (SENT_SECONDS if session.has_sent else QUIET_SECONDS)


def shares(locked: Sequence[LockedSession], credit: int, most: int) -> list[int]:
    """The credit to set for each session, in their order; 0: leave it as it is.

    Args:
        locked: in the order in which to serve them (I3).
        credit: messages that the owner accepts, including those in transit.
        most: sessions that may be locked.
    """
    spare = credit - sum(each.credit for each in locked)
    share = max(1, credit // max(len(locked), min(most, CREDIT_PARTS), 1))
    # One message for each without credit, and for each expected session.
    kept = sum(not each.credit for each in locked) + max(0, most - len(locked))
    found = []
    for each in locked:
        wanted = 0
        if not each.is_leaving and 2 * each.credit <= share and each.credit < share:
            kept -= not each.credit
            wanted = min(share, each.credit + spare - kept)
            if not each.credit:
                wanted = max(wanted, min(1, spare))
        if wanted <= each.credit:
            wanted = 0
        spare -= wanted - each.credit if wanted else 0
        found.append(wanted)
    return found
