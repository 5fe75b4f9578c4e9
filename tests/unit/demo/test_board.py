"""The board measures what came from elsewhere, against the publisher's stamp."""

from __future__ import annotations

from isthmus.amqp import section
from isthmus.demo.consumer import Board, stamp
from isthmus.demo.flight import flights
from isthmus.demo.publisher import message


def encoded(publisher: str, number: int, sent_at_seconds: float) -> bytes:
    return section.encode_message(
        b"{}",
        application_properties={"publisher": publisher, "number": number, "sent_at_seconds": sent_at_seconds},
    )


def test_a_stamp_is_read_from_the_encoded_message() -> None:
    assert stamp(encoded("EWR", 7, 12.5)) == ("EWR", 7, 12.5)
    assert stamp(section.encode_message(b"")) == ("", 0, 0.0)


def test_latency_is_of_messages_from_elsewhere_by_part() -> None:
    board = Board("JFK", {"EWR": 10, "JFK": 10}, burst_from=4)
    for publisher, number in (("EWR", 1), ("EWR", 4), ("EWR", 10), ("JFK", 4)):
        board.take(encoded(publisher, number, 100.0), 100.25)
    assert (board.received, board.remote) == (4, 3)
    assert board.burst_ms == [250.0]
    assert board.paced_ms == [250.0]
    assert board.last_burst == 100.25


def test_i1_a_flight_bears_its_publisher_and_number() -> None:
    flight = next(flights(1))
    made = message(flight, 3)
    properties = made.application_properties or {}
    assert (properties["publisher"], properties["number"]) == ("EWR", 3)
    assert (properties["carrier"], properties["distance"], properties["cancelled"]) == ("UA", 1400, False)
    assert made.message_id == "EWR-3"
    assert made.subject == "UA1545"
