"""Which sessions a source takes, how much each may send, and when it gives one back so that others get their turn.

What it is: the decisions, from how many sessions are held and what each has done lately. What it is not: links, locks, or the order
in which the source's system gives free sessions out.

A source asks for the next free session as long as it may hold one more, so while such a request waits, nobody else does: every session
that has messages is held, here or elsewhere. When the source holds as many as it may, others may wait: then a session that has nothing
to send is given back at once, and the one that has been held longest after its turn. A session of one message occupies its place for
some four round trips (request, credit, the target's acknowledgement, drain), so that many are held at once.

A session whose message its target refuses cannot be given back (I4). It occupies no place once its turn is over: else a route all of whose
sessions have such a message would never see another message, by which its target shows that it takes others. Where these are refused as well, the
opening of the route ends, and gives all of them back (docs/explanation/lease.md, Refused messages).

Invariants:
    I1. No more sessions are held and asked for than the limit, which is never more than the messages that may be under way; at most
        `SPARE_SESSIONS` that are to be given back, and cannot be, do not count.
    I2. While the limit is reached, no session is held for ever: one at a time is given back when its turn is over, those that
        have nothing to send at once.
    I3. The shares of all sessions together do not exceed the credit, and a session that had none before is served first.
    I4. A session with messages under way is not given back: its order ends with its lock.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["QUIET_SECONDS", "SPARE_SESSIONS", "HeldSession", "SessionTurns", "shares"]

# A request that waits costs the source's system an attach a minute. Each answer takes a round trip: at 60 ms, 8 requests at once are 133
# sessions a second, however few messages are in each.
MOST_REQUESTS = 64
# A session takes at most such a part of the credit, so that few sessions are fast at a distance, and the first ones leave something.
CREDIT_PARTS = 32
# A session that sent nothing for so long, though it may, is given back: while others may wait, if it has sent something and if it has not,
# and otherwise. What is in a session comes together; the first of it needs a round trip.
SENT_SECONDS = 0.005
QUIET_SECONDS = 0.05
IDLE_SECONDS = 10.0
# How long a session is held while others may wait.
TURN_SECONDS = 3.0
# A session that is to be given back, and for so long has had messages under way, counts no more; so many at most.
STUCK_SECONDS = 1.0
SPARE_SESSIONS = 16


@dataclass(slots=True, eq=False)
class HeldSession:
    """A session that the source holds.

    Attributes:
        since: when it was taken.
        quiet_since: when it last sent something, or was given credit after it had none.
        credit: what it may still send.
        unsettled: its messages that are not settled.
        is_leaving: whether it is being given back.
        has_sent: whether anything came.
    """

    since: float
    quiet_since: float
    credit: int = 0
    unsettled: int = 0
    is_leaving: bool = False
    has_sent: bool = False

    @property
    def may_close(self) -> bool:
        """Whether it can be given back now (I4)."""
        return self.is_leaving and not self.credit and not self.unsettled

    @property
    def stuck_at(self) -> float:
        """From when on it occupies no place though it is held; infinite where it does."""
        is_waiting = self.is_leaving and not self.credit and self.unsettled
        return self.quiet_since + STUCK_SECONDS if is_waiting else math.inf


class SessionTurns:
    """The turns of one source.

    Args:
        most: sessions that it may hold.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._requests = 1
        self._not_before = -math.inf

    def limit(self, capacity: int) -> int:
        """How many sessions may be held; `capacity`: messages that may be under way."""
        return min(self.most, max(0, capacity))

    def requests(self, sessions: Sequence[HeldSession], pending: int, capacity: int, now: float) -> int:
        """How many more sessions to ask for; `pending`: that are asked for, and not given."""
        if now < self._not_before:
            return 0
        self._not_before = -math.inf
        held, capacity = _counting(sessions, capacity, now)
        return max(0, min(self._requests, self.limit(capacity) - len(held)) - pending)

    def granted(self) -> None:
        """A session came: more may be free."""
        self._requests = min(MOST_REQUESTS, self._requests * 2)

    def refused(self, now: float, delay_seconds: float = 0.0) -> None:
        """None was free, or none is given now."""
        self._requests = 1
        self._not_before = now + delay_seconds

    def leaving(self, sessions: Sequence[HeldSession], capacity: int, now: float) -> list[HeldSession]:
        """The sessions to give back from now on."""
        held, capacity = _counting(sessions, capacity, now)
        is_full = len(held) >= self.limit(capacity)
        is_short = is_full or self._is_short(held, capacity)
        found = [each for each in held if not each.is_leaving and _is_idle(each) and _leaves_at(each, is_short) <= now]
        if is_full and not found and not any(each.is_leaving for each in held):
            oldest = min(held, key=lambda each: each.since, default=None)
            if oldest is not None and oldest.since <= now - TURN_SECONDS:
                found.append(oldest)
        return found

    def deadline(self, sessions: Sequence[HeldSession], capacity: int, now: float) -> float:
        """When to ask `leaving` and `requests` again though nothing happened."""
        held, capacity = _counting(sessions, capacity, now)
        is_full = len(held) >= self.limit(capacity)
        is_short = is_full or self._is_short(held, capacity)
        due = self._not_before if self._not_before > -math.inf else math.inf
        due = min([due, *(_leaves_at(each, is_short) for each in held if not each.is_leaving and _is_idle(each))])
        due = min([due, *(each.stuck_at for each in held if each.stuck_at > now)])
        if is_full and held and not any(each.is_leaving for each in held):
            due = min(due, min(each.since for each in held) + TURN_SECONDS)
        return due

    def _is_short(self, held: Sequence[HeldSession], capacity: int) -> bool:
        """Whether sessions that are held, or may come, get less credit than they could use."""
        if len(held) <= CREDIT_PARTS:
            return False
        return capacity - sum(each.credit + each.unsettled for each in held) <= self.most - len(held)


def _counting(held: Sequence[HeldSession], capacity: int, now: float) -> tuple[Sequence[HeldSession], int]:
    """The sessions that occupy a place, and the messages that may be under way in them and in others."""
    stuck = [each for each in held if each.stuck_at <= now][:SPARE_SESSIONS]
    if not stuck:
        return held, capacity
    return [each for each in held if each not in stuck], capacity - sum(each.unsettled for each in stuck)


def _is_idle(session: HeldSession) -> bool:
    return session.credit > 0 and not session.unsettled


def _leaves_at(session: HeldSession, is_short: bool) -> float:
    if not is_short:
        return session.quiet_since + IDLE_SECONDS
    return session.quiet_since + (SENT_SECONDS if session.has_sent else QUIET_SECONDS)


def shares(held: Sequence[HeldSession], credit: int, most: int) -> list[int]:
    """The credit to set for each session, in their order; 0: leave it as it is.

    Args:
        held: in the order in which they are to be served (I3).
        credit: messages that the owner takes, those on their way included.
        most: sessions that may be held.
    """
    spare = credit - sum(each.credit for each in held)
    share = max(1, credit // max(len(held), min(most, CREDIT_PARTS), 1))
    # One message for each that has no credit yet, and for each that may come.
    kept = sum(not each.credit for each in held) + max(0, most - len(held))
    found = []
    for each in held:
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
