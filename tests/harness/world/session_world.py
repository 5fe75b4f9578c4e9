"""A route that reads sessions, in the world of `route_world`: which sessions are locked is decided by the real
`isthmus.connectors.servicebus.port.session.scheduler`.

Beside what `route_world` checks:
    - credit of all sessions together is never more than the owner has granted;
    - without a refusal the target has the messages of each session in their order;
    - messages that are refused without a reason, each first in its session, are set aside, and stop nothing.
"""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import dataclass, replace
from typing import Any

from harness.world.route_world import Source, World
from isthmus.bridge.flow.byte_budget import ByteBudget
from isthmus.bridge.lease.fence import Fence
from isthmus.bridge.lease.lease import RouteLease
from isthmus.bridge.port import Arrived, Drained, Exhausted, SourceLost, SourceOpened
from isthmus.bridge.refusal import Refusal, RefusalKind
from isthmus.bridge.route_spec import RouteSpec
from isthmus.connectors.servicebus.port.session.scheduler import LockedSession, SessionScheduler, shares

__all__ = ["CrowdedWorld", "SessionWorld"]

_UNCLEAR = Refusal(RefusalKind.UNCLEAR, "odd", "no reason is given")


@dataclass(eq=False)
class _Link:
    """A session that is locked."""

    session: int
    locked: LockedSession
    credit: int = 0


class _SessionSource(Source):
    """A queue with sessions, and the links that read it. A message of a session can be settled only by the link that holds the session."""

    def __init__(self, world: SessionWorld, count: int) -> None:
        super().__init__(world, count)
        self.sessions = world.sessions
        self._scheduler = SessionScheduler(world.most)
        self._links: list[_Link] = []
        self._asked: list[float] = []  # when each request for a session may be answered
        self._link_of: dict[int, _Link | None] = {}  # of what the owner has; None: its session was lost
        self._known: set[int] = set()  # completed after its session was lost
        self._free: list[int] = []  # sessions with messages that are not locked, in the order in which they became free

    # ---- what the owner does

    def open(self) -> None:
        self.state, self.is_exhausted = "opening", False
        self.answer_at = self.world.soon()

    def close(self) -> None:
        assert not self.locked or self.state != "open", (
            f"closed with {list(self.locked)}, neither settled nor given back"
        )
        self._lose_all()
        self._link_of.clear()
        self._known.clear()
        self.state, self.credit, self.draining = "closed", 0, False

    def lose(self) -> None:
        self._lose_all()
        self.state, self.credit, self.draining = "lost", 0, False

    def settle(self, first: int, last: int, kind: str) -> None:
        for position in range(first, last + 1):
            if position not in self._link_of:
                continue
            if self._link_of.pop(position) is not None:
                self._settle(position, kind)
            elif kind == "complete":
                assert position in self.world.accepted, f"{position} is completed unsent"
                self._known.add(position)

    # ---- the world

    def step(self) -> list[Any]:
        """What it reports now."""
        world = self.world
        if self.state == "opening" and world.now >= self.answer_at:
            if world.chance(0.3):
                self.lose()
                return [SourceLost("refused", world.chance(0.3))]
            self.state = "open"
            return [SourceOpened("ns")]
        if self.state != "open":
            return []
        if world.chance(0.01):
            self.lose()
            world.faults += 1
            return [SourceLost("broke", world.chance(0.2))]
        if self._links and world.chance(0.02):
            self._lose(self._links.pop(world.choose.randrange(len(self._links))))
            self._scheduler.refused(world.now, 0.5)
            world.faults += 1
        self._answer_requests()
        positions = self._deliver()
        reported: list[Any] = [Arrived(positions, [world.payload(each) for each in positions])] if positions else []
        self._take_turns()
        if self.draining:
            for link in self._links:
                link.credit = 0
            if world.choose.random() < 0.5:
                self.draining, self.credit = False, 0
                reported.append(Drained())
        else:
            self._share()
        is_empty = not (self.ready or self.locked or self._link_of or self.draining)
        if world.spec.only_present and is_empty and not (self.is_exhausted or reported):
            self.is_exhausted = True
            reported.append(Exhausted())
        return reported

    def deadline(self) -> float:
        now = self.world.now
        if self.state == "opening":
            return self.answer_at
        if self.state != "open":
            return math.inf
        locked = {link.session for link in self._links}
        waiting = {each % self.sessions for each in self.ready}
        can_act = (
            self.draining
            or any(link.locked.may_close or (link.credit and link.session in waiting) for link in self._links)
            or any(not link.credit and not link.locked.is_leaving for link in self._links) * (self._spare() > 0)
            or (any(each <= now for each in self._asked) and bool(waiting - locked))
        )
        due = [each for each in self._asked if each > now]
        return min(
            [
                now + 0.01 if can_act else math.inf,
                *due,
                self._scheduler.deadline(self._locked_sessions(), self._capacity(), now),
            ]
        )

    # ---- sessions

    def _locked_sessions(self) -> list[LockedSession]:
        for link in self._links:
            link.locked.credit = link.credit
            link.locked.unsettled = sum(each is link for each in self._link_of.values())
        return [link.locked for link in self._links]

    def _capacity(self) -> int:
        return self.credit + len(self._link_of)

    def _spare(self) -> int:
        return self.credit - sum(link.credit for link in self._links)

    def _answer_requests(self) -> None:
        now, locked = self.world.now, {link.session for link in self._links}
        waiting = dict.fromkeys(each % self.sessions for each in self.ready)
        free = self._free = [each for each in dict.fromkeys([*self._free, *waiting]) if each in waiting.keys() - locked]
        for asked in [each for each in self._asked if each <= now]:
            if free:
                self._asked.remove(asked)
                session = free.pop(0 if self.world.gives_first_free else self.world.choose.randrange(len(free)))
                self._links.append(_Link(session, LockedSession(now, now)))
                self._scheduler.granted()
            elif now > asked + 60.0:
                self._asked.remove(asked)
                self._scheduler.refused(now)

    def _deliver(self) -> list[int]:
        world, given = self.world, []
        for link in self._links:
            own = [each for each in self.ready if each % self.sessions == link.session]
            taken = own[: min(link.credit, world.choose.choice([1, 3, 1000]))]
            if not taken or world.choose.random() >= world.eager:
                continue
            link.locked.quiet_since, link.locked.has_sent = world.now, True
            link.credit -= len(taken)
            for position in taken:
                self.ready.remove(position)
                self.locked[position] = True
                if position in self._known:
                    self._known.discard(position)
                    self._settle(position, "complete")
                else:
                    self._link_of[position] = link
                    given.append(position)
        self.credit -= len(given)
        return given

    def _take_turns(self) -> None:
        now = self.world.now
        for locked in self._scheduler.leaving(self._locked_sessions(), self._capacity(), now):
            locked.is_leaving = True
        for link in self._links:
            link.credit = 0 if link.locked.is_leaving else link.credit
        self._locked_sessions()
        self._links = [link for link in self._links if not link.locked.may_close]
        for _ in range(self._scheduler.requests(self._locked_sessions(), len(self._asked), self._capacity(), now)):
            self._asked.append(self.world.soon())

    def _share(self) -> None:
        found = shares(self._locked_sessions(), self.credit, self._scheduler.most)
        for link, share in zip(list(self._links), found, strict=True):
            if share:
                link.locked.quiet_since = link.locked.quiet_since if link.credit else self.world.now
                link.credit = share
                self._links.remove(link)
                self._links.append(link)
        assert self._spare() >= 0, "more credit than was granted"

    def _lose(self, link: _Link) -> None:
        """Its messages come again with its session; the owner still has them."""
        for position in [each for each, of in self._link_of.items() if of is link]:
            self._link_of[position] = None
            del self.locked[position]
            self.ready = sorted([*self.ready, position])

    def _lose_all(self) -> None:
        for link in self._links:
            self._lose(link)
        self._links, self._asked = [], []
        self._answer_requests()  # they are free
        self._scheduler.refused(-math.inf)


class SessionWorld(World):
    """A route that reads sessions."""

    sessions: int
    most: int

    def __init__(self, seed: int, count: int = 30) -> None:
        # A namespace of isthmus gives out first what became free first; others promise nothing.
        self.gives_first_free = random.Random(seed).random() < 0.5
        self.next_at = math.inf
        super().__init__(seed, count)
        spec = self.spec
        if self.choose.random() < 0.5 and not (spec.block_refused or spec.is_strict):
            # Many where each is the first of its session: those behind it in one session come only once it is set aside.
            few = 3 if spec.window < 10 or spec.window_bytes <= 500 else 8
            many = self.choose.choice([3, 30 if self.sessions >= 30 else few])
            self.poison |= dict.fromkeys(range(1, many + 1), _UNCLEAR)
            self.spec = self.lease.spec = replace(spec, target_seconds=30.0)

    def calm(self) -> None:
        """No fault happens from now on, and others come for what is refused without a reason to be compared with."""
        super().calm()
        self.next_at = self.now

    def step(self) -> None:
        if self.now >= self.next_at and not (self.is_done or self.has_ended):
            self.next_at = self.now + 20.0
            self.publish(1)
        super().step()

    def make_source(self, count: int) -> Source:
        self.sessions = self.choose.choice([3, 5, 30, 61])
        self.most = self.choose.choice([1, 2, 4, 20])
        return _SessionSource(self, count)

    def check_order(self) -> None:
        if self.spec.is_strict or not (self.refused or self.poison):
            firsts = list(dict.fromkeys(self.accepted))
            for session in range(self.sessions):
                of_session = [each for each in firsts if each % self.sessions == session]
                assert of_session == sorted(of_session), f"out of order: {of_session}"


class CrowdedWorld(SessionWorld):
    """More sessions that begin with a refused message than are locked at once, and others that come late and are far apart; without faults.

    Args:
        seed: of what is left to chance.
        refused: sessions whose only message is refused.
        most: sessions that are locked at once.
        seconds: between two other messages, the first of which comes as late.
    """

    def __init__(self, seed: int, refused: int, most: int, seconds: float) -> None:
        self._refused, self._most, self._seconds = refused, most, seconds
        super().__init__(seed, refused)
        self.gives_first_free = True
        self.chaos, self.later, self.limit_bytes, self.large = 0.0, 0, 0, set()
        self.poison = dict.fromkeys(range(1, refused + 1), _UNCLEAR)
        self.spec = RouteSpec(name="r", source=self.spec.source, target=self.spec.target)
        self.fence = Fence(False, self.now)
        handles = itertools.count(1)
        self.lease = RouteLease(self.spec, self.fence, ByteBudget(1 << 20, 200), lambda: next(handles))
        self.next_at = self.now + seconds

    def make_source(self, count: int) -> Source:
        self.sessions, self.most = 2 * self._refused, self._most
        return _SessionSource(self, count)

    def publish(self, count: int) -> None:
        super().publish(count)
        self.next_at = self.now + self._seconds
