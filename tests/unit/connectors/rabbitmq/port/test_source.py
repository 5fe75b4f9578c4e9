"""isthmus.connectors.rabbitmq.port.source: which messages it delivers; without a broker."""

from __future__ import annotations

import math
import struct
from types import SimpleNamespace
from typing import Any

import pytest

from isthmus.bridge.delivery_event import Disposition
from isthmus.bridge.port import Arrived, Exhausted, SourceLost
from isthmus.connectors.rabbitmq.option import read_source
from isthmus.connectors.rabbitmq.port.end import CHANNEL
from isthmus.connectors.rabbitmq.port.source import CONSUMER, RabbitSource
from isthmus.connectors.rabbitmq.protocol.connection import Content
from isthmus.connectors.rabbitmq.protocol.wire import M
from isthmus.errors import ConnectionLostError


class Rig:
    """A source of the messages that exist, whose channel works, and what is written to it."""

    def __init__(self, *, ordered: bool, messages: int, dead_letters: str = "d", exchange: str = "") -> None:
        self.marked: list[int] = []
        pool: Any = SimpleNamespace(
            mark=self.marked.append, unmark=lambda _: None, kept_until=lambda _: -math.inf, drop=lambda _: None,
            connect=lambda *_: SimpleNamespace(end=None),
        )  # fmt: skip
        options = {"host": "localhost", "username": "u", "password": "env:P", "entity": "q", "entity_type": "queue"}
        read = read_source({**options, "dead_letters": dead_letters, "dead_letter_exchange": exchange or "false"})
        self.source = RabbitSource(pool, 1, read, ordered=ordered, only_present=True)
        self.written: list[bytes] = []
        self._tag = 0
        self.connect()
        self.source._counted(messages)

    def connect(self) -> None:
        self.source.connection = SimpleNamespace(  # type: ignore[assignment]
            write=self.written.append, flush=lambda: None, is_paused=False, error=None, broker="b"
        )
        self.source.is_open = True

    def lose(self) -> None:
        self.source.fail(ConnectionLostError("gone"))
        assert any(isinstance(each, SourceLost) for each in self.source.poll(0.0))
        self.connect()

    def deliver(self, *bodies: bytes, is_again: bool = False) -> None:
        for body in bodies:
            self._tag += 1
            name = CONSUMER.encode()
            arguments = bytes([len(name)]) + name + struct.pack(">Q?", self._tag, is_again) + b"\0\1q"
            self.source.on_content(CHANNEL, M.BASIC_DELIVER, Content(arguments, b"\0\0", body))

    def take(self, credit: int) -> tuple[list[int], bool]:
        """The positions that the owner gets with so much credit, and whether the source is exhausted."""
        self.source.grant(credit)
        events = self.source.poll(0.0)
        positions = [position for each in events if isinstance(each, Arrived) for position in each.positions]
        return positions, Exhausted() in events


@pytest.mark.parametrize("ordered", [False, True])
def test_released_messages_are_none_of_those_that_came_later(ordered: bool) -> None:
    """They are delivered again, and the last of those that existed was taken for a later one: it stayed in the queue, and the run ended."""
    rig = Rig(ordered=ordered, messages=3, dead_letters="")
    rig.deliver(b"1", b"2", b"3")
    (first,), is_over = rig.take(1)
    assert not is_over
    rig.source.settle(first, first, Disposition("abandon"))
    rig.source.on_method(CHANNEL, M.CHANNEL_CLOSE_OK, b"")
    rig.deliver(*((b"1", b"2", b"3") if ordered else (b"1",)), is_again=True)
    positions, is_over = rig.take(10)
    assert len(positions) == 3
    assert is_over
    rig.deliver(b"4")
    assert rig.take(10) == ([], False)


def test_a_message_that_arrives_before_a_released_one_returns_is_a_later_one() -> None:
    """It was taken for the released one, which stayed in the queue."""
    rig = Rig(ordered=False, messages=2)
    rig.deliver(b"1", b"2")
    (first, second), _ = rig.take(10)
    rig.source.settle(second, second)
    rig.source.settle(first, first, Disposition("abandon"))
    rig.deliver(b"3")
    assert rig.take(10) == ([], False)
    rig.deliver(b"1", is_again=True)
    (again,), _ = rig.take(10)
    rig.source.settle(again, again)
    assert rig.take(10) == ([], True)


def test_a_message_of_a_lost_channel_that_is_set_aside_is_none_of_those_that_came_later() -> None:
    """It is redelivered, and set aside then."""
    rig = Rig(ordered=True, messages=3)
    rig.deliver(b"1", b"2", b"3")
    (first, second), _ = rig.take(2)
    rig.source.settle(second, second, Disposition("abandon"))
    rig.source.settle(first, first, Disposition("dead-letter", "Bad", "it is"))
    rig.source.on_method(CHANNEL, M.CHANNEL_CLOSE_OK, b"")
    rig.deliver(b"1", b"2", b"3", is_again=True)
    positions, _ = rig.take(10)
    assert len(positions) == 3
    rig.source.settle(positions[0], positions[-1])
    assert rig.take(10) == ([], True)


@pytest.mark.parametrize("ordered", [False, True])
def test_a_message_whose_copy_is_not_confirmed_is_none_of_those_that_came_later(ordered: bool) -> None:
    """The queue of dead letters is full, or the connection is lost: it is redelivered, and the last existing one stayed in the queue."""
    rig = Rig(ordered=ordered, messages=3)
    rig.deliver(b"1", b"2")
    (first, second), _ = rig.take(2)
    rig.source.settle(first, first, Disposition("dead-letter", "Bad", "it is"))
    rig.lose()
    rig.deliver(b"1", b"2", is_again=True)
    rig.deliver(b"3", b"4")
    positions, is_over = rig.take(10)
    assert len(positions) == 2
    assert not is_over
    rig.source.settle(second, positions[-1])
    assert rig.take(10) == ([], True)


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("is_dead", [False, True])
def test_a_message_whose_acknowledgement_was_lost_is_none_of_those_that_came_later(
    ordered: bool, is_dead: bool
) -> None:
    """Without a message-id it is not recognised, and counted twice: the last existing one stayed in the queue, and the run ended."""
    rig = Rig(ordered=ordered, messages=3)
    rig.deliver(b"1", b"2")
    (first, second), _ = rig.take(2)
    rig.source.settle(first, first, Disposition("dead-letter", "Bad", "it is") if is_dead else None)
    if is_dead:
        rig.source._dead._unpublished.clear()
        rig.source._confirmed([1])
    rig.lose()
    rig.deliver(b"1", b"2", is_again=True)
    (again,), _ = rig.take(10)
    rig.source.settle(second, again)
    assert rig.take(10) == ([], False)
    rig.deliver(b"1", is_again=True)  # another one with the same contents, from another consumer
    rig.deliver(b"4")
    (last,), _ = rig.take(10)
    rig.source.settle(last, last)
    assert rig.take(10) == ([], True)


def test_a_message_whose_rejection_was_lost_is_none_of_those_that_came_later() -> None:
    """As above, where the queue has a dead-letter exchange."""
    rig = Rig(ordered=False, messages=3, dead_letters="", exchange="true")
    rig.deliver(b"1", b"2")
    (first, second), _ = rig.take(2)
    rig.source.settle(first, first, Disposition("dead-letter", "Bad", "it is"))
    rig.lose()
    rig.deliver(b"1", b"2", is_again=True)
    rig.deliver(b"3", b"4")
    positions, is_over = rig.take(10)
    assert len(positions) == 2  # "1" once more, and "3"
    assert not is_over
    rig.source.settle(second, positions[-1])
    assert rig.take(10) == ([], True)


def test_the_end_waits_for_messages_that_may_be_rejected() -> None:
    """With a lost connection they are redelivered, and are rejected then: a run ended in good order, and the message stayed in its queue."""
    rig = Rig(ordered=False, messages=1, dead_letters="", exchange="true")
    rig.deliver(b"1")
    (first,), is_over = rig.take(10)
    assert not is_over
    rig.lose()
    rig.source.settle(first, first, Disposition("dead-letter", "Bad", "it is"))
    assert rig.take(10) == ([], False)
    rig.deliver(b"1", is_again=True)
    (again,), _ = rig.take(10)
    rig.marked.clear()
    rig.source.settle(again, again, Disposition("dead-letter", "Bad", "it is"))
    assert rig.marked
    assert rig.take(10) == ([], True)


def test_an_acknowledgement_that_was_lost_with_the_end_of_its_channel_is_counted_once() -> None:
    """As above, where a released message had closed the channel before the connection was lost."""
    rig = Rig(ordered=True, messages=3)
    rig.deliver(b"1", b"2")
    (first, second), _ = rig.take(2)
    rig.source.settle(first, first)
    rig.source.settle(second, second, Disposition("abandon"))
    rig.lose()
    rig.deliver(b"1", b"2", is_again=True)
    rig.deliver(b"3", b"4")
    positions, _ = rig.take(10)
    assert len(positions) == 3
    rig.source.settle(positions[0], positions[-1])
    assert rig.take(10) == ([], True)


def test_the_end_waits_for_the_copies_of_messages_that_are_set_aside() -> None:
    """The owner closes the source at the end. Where the queue of dead letters is full, a run ended in good order, and the message stayed in its queue."""
    rig = Rig(ordered=True, messages=2)
    rig.deliver(b"1", b"2")
    (first, second), is_over = rig.take(10)
    assert not is_over
    rig.source.settle(second, second)
    rig.source.settle(first, first, Disposition("dead-letter", "Bad", "it is"))
    assert rig.take(10) == ([], False)
    rig.source._dead._unpublished.clear()  # its copy is confirmed
    rig.marked.clear()
    rig.source._confirmed([1])
    assert rig.marked
    assert rig.take(10) == ([], True)


def test_the_end_is_reported_once_the_last_message_is_settled() -> None:
    rig = Rig(ordered=True, messages=1)
    rig.deliver(b"1")
    (first,), is_over = rig.take(10)
    assert not is_over
    rig.marked.clear()
    rig.source.settle(first, first)
    assert rig.marked, "it is polled"
    assert rig.take(10) == ([], True)


def test_a_message_that_is_abandoned_after_all_have_arrived_is_consumed_again() -> None:
    """The consumer ends with the last existing message, and the owner has granted enough already."""
    rig = Rig(ordered=False, messages=2)
    rig.deliver(b"1", b"2")
    (first, _), _ = rig.take(10)
    assert not rig.source._is_consuming
    rig.source.settle(first, first, Disposition("abandon"))
    assert rig.source._is_consuming
