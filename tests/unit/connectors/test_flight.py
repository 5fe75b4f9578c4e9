"""isthmus.connectors.flight"""

from __future__ import annotations

import math

from isthmus.bridge.delivery_event import Outcome
from isthmus.bridge.refusal import Refusal, RefusalKind
from isthmus.connectors.flight import Flight, ranges

NO = Refusal(RefusalKind.MESSAGE, "400", "no")


def test_an_envelope_is_answered_when_all_of_it_is() -> None:
    flight = Flight(10)
    assert [flight.sent(1, 0.0), flight.sent(2, 0.0), flight.sent(1, 0.0)] == [0, 1, 3]
    assert flight.credit == 7
    assert flight.answered([0, 1], [], 1.0) == [Outcome(0, 0)]
    assert flight.since == 1.0
    assert flight.answered([3], [(2, NO)], 2.0) == [Outcome(2, 2), Outcome(1, 1, NO, (0,))]
    assert (flight.credit, flight.since) == (10, math.inf)


def test_without_envelopes_answers_are_those_of_deliveries_i1() -> None:
    flight = Flight(10)
    for _ in range(5):
        flight.sent(1, 0.0)
    assert flight.answered([4, 1, 0], [(2, NO)], 1.0) == [Outcome(0, 1), Outcome(4, 4), Outcome(2, 2, NO)]
    assert flight.credit == 9


def test_ranges() -> None:
    assert ranges([]) == []
    assert ranges([3, 1, 2]) == [(1, 3)]
    assert ranges([1, 2, 5, 7, 6]) == [(1, 2), (5, 7)]
