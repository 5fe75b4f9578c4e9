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

    def progresses(self, deliveries: int) -> bool:
        self._now += LOOK_SECONDS
        return self._transit.progresses(self._now, 100.0, deliveries)


def test_what_arrives_of_the_deliveries_is_progress() -> None:
    carrier = Carrier()
    transit = Looking(carrier)
    carrier.queued_bytes = 1000
    assert transit.progresses(1), "some bytes are on their way"
    assert not transit.progresses(1), "I2: nothing has arrived since"
    carrier.arrived_bytes = 400
    assert transit.progresses(1)
    assert not transit.progresses(1)
    carrier.arrived_bytes = 1000
    assert transit.progresses(1)
    assert not transit.progresses(1)


def test_i1_later_bytes_of_others_are_no_progress() -> None:
    carrier = Carrier()
    carrier.queued_bytes = carrier.arrived_bytes = 1000
    transit = Looking(carrier)
    assert not transit.progresses(1), "all have arrived"
    carrier.queued_bytes = carrier.arrived_bytes = 5000
    assert not transit.progresses(1)


def test_further_deliveries_are_in_transit_again() -> None:
    carrier = Carrier()
    carrier.queued_bytes = carrier.arrived_bytes = 1000
    transit = Looking(carrier)
    assert not transit.progresses(1)
    carrier.queued_bytes = 3000
    assert transit.progresses(2)
    carrier.arrived_bytes = 2000
    assert transit.progresses(2)


def test_it_looks_some_time_after_the_last_outcome_and_look() -> None:
    carrier = Carrier()
    transit = Transit(carrier)
    carrier.queued_bytes = 1000
    assert transit.due(100.0) == 100.0 + LOOK_SECONDS
    assert not transit.progresses(99.9 + LOOK_SECONDS, 100.0, 1)
    assert transit.progresses(101.0 + LOOK_SECONDS, 100.0, 1)
    assert transit.due(100.0) == 101.0 + 2 * LOOK_SECONDS
    assert transit.due(200.0) == 200.0 + LOOK_SECONDS
