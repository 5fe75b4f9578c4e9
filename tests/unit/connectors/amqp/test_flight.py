"""isthmus.connectors.amqp.flight"""

from __future__ import annotations

from isthmus.bridge.delivery_event import Outcome
from isthmus.bridge.refusal import Refusal, RefusalKind
from isthmus.connectors.amqp.flight import Flight

NO = Refusal(RefusalKind.MESSAGE, "", "no")


def test_without_envelopes_ordinals_are_those_of_the_link() -> None:
    """I2"""
    flight = Flight()
    flight.sent(5)
    assert flight.answered(0, 4, None) == [Outcome(0, 4)]
    flight.sent(2)
    assert flight.answered(5, 6, NO) == [Outcome(5, 6, NO)]


def test_an_envelope_has_one_outcome() -> None:
    """I1"""
    flight = Flight()
    flight.sent(2)
    flight.sent_envelope(3)
    flight.sent(1)
    assert flight.answered(0, 3, None) == [Outcome(0, 0), Outcome(1, 1)]
    assert flight.answered(4, 5, None) == [Outcome(2, 2), Outcome(3, 3)]


def test_an_envelope_is_refused_with_any_of_its_messages() -> None:
    """I1"""
    flight = Flight()
    flight.sent_envelope(3)
    flight.sent_envelope(1)
    assert flight.answered(1, 1, NO) == []
    assert flight.answered(0, 0, None) == []
    assert flight.answered(2, 3, None) == [Outcome(0, 0, NO), Outcome(1, 1)]
