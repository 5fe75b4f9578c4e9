"""isthmus.connectors.rabbitmq.port.flight: the assignment of confirms to deliveries."""

from __future__ import annotations

import math

from isthmus.amqp import section
from isthmus.bridge.delivery_event import Outcome
from isthmus.bridge.refusal import Refusal, RefusalKind
from isthmus.connectors.rabbitmq.mapping.outward import to_record
from isthmus.connectors.rabbitmq.port.flight import CREDIT, Flight
from isthmus.connectors.rabbitmq.protocol import property as props

REFUSAL = Refusal(RefusalKind.UNCLEAR, "312", "NO_ROUTE", "Unroutable")
TOO_LARGE = Refusal(RefusalKind.MESSAGE, "", "too large", "MessageTooLarge")


def payload(number: int) -> bytes:
    return section.encode_message(
        b"body", properties={"message_id": f"m{number}"}, application_properties={"a": 1, "b": "x"}
    )


def sent(count: int) -> Flight:
    flight = Flight()
    for number in range(count):
        flight.sent(flight.begin(1), payload(number), 1.0)
    return flight


def test_confirms_of_many_are_one_outcome() -> None:
    flight = sent(5)
    assert (flight.credit, flight.since) == (CREDIT - 5, 1.0)
    flight.answered(3, True, None)
    assert flight.take(2.0) == [Outcome(0, 2)]
    assert flight.since == 2.0
    flight.answered(5, False, None)
    assert flight.take(3.0) == [Outcome(4, 4)]
    flight.answered(5, True, None)
    assert flight.take(4.0) == [Outcome(3, 3)]
    assert (flight.credit, flight.since) == (CREDIT, math.inf)


def test_what_came_back_is_refused_when_its_confirm_comes() -> None:
    """target I2: found by what it holds, though the broker writes the fields in another order."""
    flight = sent(4)
    record = to_record(payload(2))
    found = props.read(record.properties)
    turned = record._replace(properties=props.write(found._replace(headers=tuple(reversed(found.headers)))))
    assert flight.returned(turned, REFUSAL, to_record)
    assert flight.take(1.0) == []
    flight.answered(4, True, None)
    assert flight.take(1.0) == [Outcome(0, 1), Outcome(3, 3), Outcome(2, 2, REFUSAL)]


def test_equal_messages_that_came_back_are_each_refused() -> None:
    flight = Flight()
    for _ in range(3):
        flight.sent(flight.begin(1), payload(0), 1.0)
    record = to_record(payload(0))
    assert flight.returned(record, REFUSAL, to_record)
    assert flight.returned(record, REFUSAL, to_record)
    flight.answered(3, True, None)
    assert sorted(each.refusal is None for each in flight.take(1.0)) == [False, False, True]


def test_what_was_never_sent_is_not_found() -> None:
    assert not sent(2).returned(to_record(payload(7)), REFUSAL, to_record)


def test_an_envelope_has_one_outcome() -> None:
    """I1."""
    flight = Flight()
    for number in range(flight.begin(3), 3):
        flight.sent(number, payload(number), 1.0)
    flight.sent(flight.begin(1), payload(3), 1.0)
    flight.answered(2, True, None)
    assert flight.take(1.0) == []
    flight.answered(3, False, REFUSAL)
    flight.answered(4, True, None)
    assert flight.take(1.0) == [Outcome(1, 1), Outcome(0, 0, REFUSAL, (0, 1))]


def test_a_message_that_was_not_published_is_refused_at_once() -> None:
    flight = Flight()
    flight.refuse(flight.begin(1), REFUSAL)
    assert flight.take(1.0) == [Outcome(0, 0, REFUSAL)]
    assert flight.credit == CREDIT


def test_what_was_taken_of_an_envelope_is_reported_with_what_came_back_and_what_was_not_published() -> None:
    """Sent again with the others, it would be there twice."""
    flight = Flight()
    assert (flight.begin(1), flight.begin(4)) == (0, 1)
    flight.sent(0, payload(0), 1.0)
    flight.sent(1, payload(1), 1.0)
    flight.refuse(2, TOO_LARGE)
    flight.sent(3, payload(3), 1.0)
    flight.sent(4, payload(4), 1.0)
    assert flight.returned(to_record(payload(3)), REFUSAL, to_record)
    flight.answered(4, True, None)
    assert flight.take(1.0) == [Outcome(0, 0), Outcome(1, 1, TOO_LARGE, (0, 3))]


def test_what_was_taken_of_an_envelope_is_reported_where_the_connection_is_lost() -> None:
    flight, lost = Flight(), Refusal(RefusalKind.UNKNOWN, "", "lost")
    for number in range(flight.begin(3), 3):
        flight.sent(number, payload(number), 1.0)
    flight.answered(2, False, None)
    assert flight.take(1.0) == []
    assert flight.lost(lost) == [Outcome(0, 0, lost, (1,))]
