"""A delivery machine and a distant target, in virtual time: the throughput with a given credit."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable

import pytest

from isthmus.bridge.delivery.delivery import Delivery
from isthmus.bridge.delivery.settings import DeliverySettings
from isthmus.bridge.delivery_event import Granted, HandedOver, Opened, Outcome, Send, Settle, Tick

CREDIT = 1000
CAPACITY = 44_000.0
ENVELOPE = 200
PAYLOAD = bytes(1024)


class World:
    """A source that has always more, up to a rate; a target that takes messages one after the other, and renews its credit when
    half of it is used up.

    Args:
        round_trip: seconds.
        part: messages that come together.
        rate: messages per second that come.
        capacity: messages per second that the target takes.
    """

    def __init__(
        self,
        round_trip: float,
        part: int,
        rate: float,
        *,
        capacity: float = CAPACITY,
        reported: int = 0,
        window: int = 12_000,
        lease_window: int = 16_000,
    ) -> None:
        self.machine = Delivery(DeliverySettings(envelope_messages=reported, window=window))
        self.now = 0.0
        self.stored: list[tuple[float, int]] = []
        self.deliveries: list[int] = []
        self._way = round_trip / 2
        self._part, self._gap = part, part / rate
        self._lease_window = lease_window
        self._step = 1 / capacity
        self._free_at = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._came = self._ordinal = self._settled = 0
        self._rows: list[int] = []
        # The target's end of the link.
        self._received = self._granted_at = 0
        self._left = CREDIT
        self._apply(Opened(1 << 20, ENVELOPE))
        self._apply(Granted(CREDIT))
        self._at(0.0, self._come)

    def run(self, seconds: float) -> World:
        while self._events and self._events[0][0] <= seconds:
            self.now, _, act = heapq.heappop(self._events)
            act()
        return self

    def rate(self, begin: float, end: float) -> float:
        return sum(count for at, count in self.stored if begin <= at < end) / (end - begin)

    def _at(self, when: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._numbers), act))

    def _come(self) -> None:
        """A part comes, if the lease's window lets it."""
        if self._came - self._settled + self._part <= self._lease_window:
            self._came += self._part
            self._rows.append(self._part)
            self._hand_over()
        self._at(self.now + self._gap, self._come)

    def _hand_over(self) -> None:
        while self._rows and self.machine.room > 0:
            self._apply(HandedOver([PAYLOAD] * self._rows.pop(0), None))

    def _apply(self, event: Opened | Granted | HandedOver | Outcome | Tick) -> None:
        for effect in self.machine.on(event, self.now):
            if isinstance(effect, Send):
                groups = [len(effect.payloads)] if effect.is_envelope else [1] * len(effect.payloads)
                self.deliveries += groups
                self._at(self.now + self._way, lambda groups=groups: self._receive(groups))  # type: ignore[misc]
            assert not isinstance(effect, Settle)
        due = self.machine.deadline(self.now)
        if due < math.inf:
            self._at(max(due, self.now), lambda: self._tick(due))

    def _tick(self, due: float) -> None:
        if self.machine.deadline(self.now) == due:
            self._apply(Tick())
            self._hand_over()

    def _receive(self, groups: list[int]) -> None:
        """The target has read deliveries: it renews its credit at once, and stores them as fast as it can."""
        self._received += len(groups)
        self._left -= len(groups)
        assert self._left >= 0
        if self._left <= CREDIT // 2:
            self._left = CREDIT
            count = self._received
            self._at(self.now + self._way, lambda: self._flow(count))
        first = self._ordinal
        self._ordinal += len(groups)
        messages = sum(groups)
        self._free_at = max(self._free_at, self.now) + messages * self._step
        self._at(self._free_at, lambda: self.stored.append((self.now, messages)))
        self._at(self._free_at + self._way, lambda: self._outcome(first, len(groups), messages))

    def _flow(self, count: int) -> None:
        self._apply(Granted(CREDIT - (len(self.deliveries) - count)))
        self._hand_over()

    def _outcome(self, first: int, count: int, messages: int) -> None:
        self._settled += messages
        self._apply(Outcome(first, first + count - 1))
        self._hand_over()


def test_nearby_a_target_takes_all_that_it_can() -> None:
    assert World(0.0, 100, 60_000).run(0.3).rate(0.1, 0.3) == pytest.approx(CAPACITY, rel=0.05)


@pytest.mark.parametrize(
    ("round_trip", "part", "share"),
    [
        (0.01, 100, 0.95),
        (0.05, 100, 0.95),
        (0.1, 10, 0.9),
        (0.1, 100, 0.9),
        (0.1, 500, 0.9),
        (0.2, 10, 0.8),
        (0.2, 500, 0.8),
    ],
)
def test_a_target_far_away_takes_nearly_as_much_as_one_nearby(round_trip: float, part: int, share: float) -> None:
    assert World(round_trip, part, 60_000).run(1.0).rate(0.6, 1.0) >= share * CAPACITY


def test_alone_far_less_would_flow() -> None:
    """What the envelopes are for: the credit for one round trip, and no more."""
    assert World(0.1, 500, 60_000, reported=1).run(1.0).rate(0.6, 1.0) < 11_000


@pytest.mark.parametrize("round_trip", [0.0, 0.1, 0.2])
def test_a_slow_load_goes_message_by_message_whatever_the_distance(round_trip: float) -> None:
    world = World(round_trip, 1, 500).run(2.0)
    assert set(world.deliveries) == {1}
    assert len(world.deliveries) >= 980


def test_nearby_a_target_that_keeps_up_gets_each_message_alone() -> None:
    world = World(0.001, 20, 20_000).run(1.0)
    assert set(world.deliveries) == {1}
