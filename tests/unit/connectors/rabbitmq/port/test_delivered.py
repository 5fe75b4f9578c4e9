"""isthmus.connectors.rabbitmq.port.delivered: redelivered messages are recognised, and no others."""

from __future__ import annotations

import pytest

from isthmus.connectors.rabbitmq.mapping.fingerprint import Traits
from isthmus.connectors.rabbitmq.port import delivered as module
from isthmus.connectors.rabbitmq.port.delivered import Delivered, Entry


def traits(number: int) -> Traits:
    return Traits(b"\0\0", number, "", "")


def reported(delivered: Delivered, position: int, number: int, *, is_named: bool = True) -> Entry:
    entry = Entry(position, position, traits(number), is_named)
    delivered.add(entry)
    return entry


def test_an_outstanding_message_is_known_by_its_position() -> None:
    delivered = Delivered()
    reported(delivered, 1, 11)
    assert delivered.recognised(traits(11)) is None  # nothing was lost
    delivered.lost()
    found = delivered.recognised(traits(11))
    assert found is not None
    assert (found.position, found.tag) == (1, 0)
    assert delivered.recognised(traits(11)) is None  # I2
    assert delivered.attach(found, 9)
    assert delivered.settle(1, 1) == [9]


def test_an_acknowledgement_that_is_lost_twice_is_remembered_twice() -> None:
    delivered = Delivered()
    reported(delivered, 1, 11)
    delivered.settle(1, 1)
    for _ in range(3):
        delivered.lost()
        found = delivered.recognised(traits(11))
        assert found is not None
        assert not delivered.attach(found, 9)


def test_of_equal_messages_as_many_are_reported_as_there_are() -> None:
    """I2: two outstanding, three come: one of them is new."""
    delivered = Delivered()
    reported(delivered, 1, 11)
    reported(delivered, 2, 11)
    delivered.lost()
    assert [each.position if each else None for each in (delivered.recognised(traits(11)) for _ in range(3))] == [
        1,
        2,
        None,
    ]


def test_an_acknowledgement_that_may_be_lost_is_remembered_by_message_id_alone() -> None:
    """I3: without one, another message may be equal to it."""
    delivered = Delivered()
    reported(delivered, 1, 11)
    reported(delivered, 2, 22, is_named=False)
    assert delivered.settle(1, 2) == [1, 2]
    delivered.lost()
    assert delivered.recognised(traits(11)) is not None
    assert delivered.recognised(traits(22)) is None


def test_what_is_settled_while_the_connection_is_unavailable_is_known_until_it_comes() -> None:
    delivered = Delivered()
    reported(delivered, 1, 11, is_named=False)
    delivered.lost()
    assert delivered.settle(1, 1) == []
    delivered.lost()  # again, before it came
    found = delivered.recognised(traits(11))
    assert found is not None
    assert found.position == 1


def test_what_is_given_back_while_the_connection_is_unavailable_comes_as_a_new_message() -> None:
    delivered = Delivered()
    reported(delivered, 1, 11)
    delivered.lost()
    assert [each.position for each in delivered.take(1, 1)] == [1]
    assert delivered.recognised(traits(11)) is None


def test_ranges_are_settled_however_wide() -> None:
    delivered = Delivered()
    for position in (5, 6, 9):
        reported(delivered, position, position)
    assert delivered.settle(6, 1 << 60) == [6, 9]
    assert len(delivered) == 1


def test_what_may_come_again_is_waited_for() -> None:
    delivered = Delivered()
    for position in (1, 2, 3):
        reported(delivered, position, position)
    delivered.lost()
    assert delivered.is_waiting
    delivered.take(1, 1)  # given back: it comes as a new message
    assert not delivered.is_owed
    delivered.settle(2, 2)  # the acknowledgement is due when it comes
    for number in (2, 3):
        assert delivered.is_waiting
        assert delivered.is_owed == (number == 2)
        found = delivered.recognised(traits(number))
        assert found is not None
        delivered.attach(found, number)
    assert not delivered.is_waiting


def test_however_often_the_connection_is_lost_no_more_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """I4: and of what was settled the newest."""
    monkeypatch.setattr(module, "REMEMBERED", 3)
    delivered = Delivered()
    for position in range(1, 11):
        reported(delivered, position, position)
        delivered.settle(position, position)
        delivered.lost()
    reported(delivered, 11, 11)
    delivered.lost()
    assert [number for number in range(1, 12) if delivered.recognised(traits(number))] == [8, 9, 10, 11]
