"""isthmus.connectors.transit."""

from __future__ import annotations

from isthmus.connectors.transit import Transit


class Carrier:
    queued_bytes = 0
    arrived_bytes = 0


def test_what_arrives_of_the_deliveries_is_progress() -> None:
    carrier = Carrier()
    transit = Transit(carrier)
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
    transit = Transit(carrier)
    assert not transit.progresses(1), "all have arrived"
    carrier.queued_bytes = carrier.arrived_bytes = 5000
    assert not transit.progresses(1)


def test_further_deliveries_are_on_their_way_again() -> None:
    carrier = Carrier()
    carrier.queued_bytes = carrier.arrived_bytes = 1000
    transit = Transit(carrier)
    assert not transit.progresses(1)
    carrier.queued_bytes = 3000
    assert transit.progresses(2)
    carrier.arrived_bytes = 2000
    assert transit.progresses(2)
