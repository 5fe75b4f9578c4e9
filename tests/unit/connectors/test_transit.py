"""isthmus.connectors.transit."""

from __future__ import annotations

from isthmus.connectors.transit import LOOK_SECONDS, Transit


class Carrier:
    queued_bytes = 0
    arrived_bytes = 0


class Looking:
    """A transit at which each look is due."""

    def __init__(self, carrier: Carrier) -> None:
        self._transit = Transit(carrier)
        self._now = 100.0

    def progresses(self, *, has_outcome: bool = False) -> bool:
        since = self._now + 0.1 if has_outcome else 100.0
        self._now += LOOK_SECONDS + 0.2
        return self._transit.progresses(self._now, since)


def test_what_arrives_of_the_deliveries_is_progress() -> None:
    carrier = Carrier()
    transit = Looking(carrier)
    carrier.queued_bytes = 1000
    assert transit.progresses(), "some bytes are on their way"
    assert not transit.progresses(), "I2: nothing has arrived since"
    carrier.arrived_bytes = 400
    assert transit.progresses()
    assert not transit.progresses()
    carrier.arrived_bytes = 1000
    assert transit.progresses()
    assert not transit.progresses()


def test_i1_later_bytes_of_others_are_no_progress() -> None:
    carrier = Carrier()
    carrier.queued_bytes = carrier.arrived_bytes = 1000
    transit = Looking(carrier)
    assert not transit.progresses(), "all have arrived"
    carrier.queued_bytes = carrier.arrived_bytes = 5000
    assert not transit.progresses()


def test_i1_later_deliveries_are_no_progress_of_those_that_wait_for_their_outcome() -> None:
    """Over a network with a long round trip a part of the newest ones is always on its way."""
    carrier = Carrier()
    transit = Looking(carrier)
    carrier.queued_bytes = 1000
    assert transit.progresses(), "the first are on their way"
    for number in range(1, 10):
        carrier.queued_bytes, carrier.arrived_bytes = 1000 * (number + 1), 1000 * number
        assert transit.progresses() == (number == 1), "the first have arrived"


def test_after_an_outcome_later_deliveries_are_waited_for() -> None:
    carrier = Carrier()
    carrier.queued_bytes = carrier.arrived_bytes = 1000
    transit = Looking(carrier)
    assert not transit.progresses()
    carrier.queued_bytes = 3000
    assert not transit.progresses()
    assert transit.progresses(has_outcome=True)
    carrier.arrived_bytes = 2000
    assert transit.progresses()


def test_it_looks_some_time_after_the_last_outcome_and_look() -> None:
    carrier = Carrier()
    transit = Transit(carrier)
    carrier.queued_bytes = 1000
    assert transit.due(100.0) == 100.0 + LOOK_SECONDS
    assert not transit.progresses(99.9 + LOOK_SECONDS, 100.0)
    assert transit.progresses(101.0 + LOOK_SECONDS, 100.0)
    assert transit.due(100.0) == 101.0 + 2 * LOOK_SECONDS
    assert transit.due(200.0) == 200.0 + LOOK_SECONDS
