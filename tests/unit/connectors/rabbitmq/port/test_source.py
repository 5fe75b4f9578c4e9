"""isthmus.connectors.rabbitmq.port.source: which messages it delivers; without a broker."""

from __future__ import annotations

import math
import struct
from types import SimpleNamespace
from typing import Any

import pytest

from isthmus.bridge.delivery_event import Disposition
from isthmus.bridge.port import Arrived, Exhausted
from isthmus.connectors.rabbitmq.option import read_source
from isthmus.connectors.rabbitmq.port.end import CHANNEL
from isthmus.connectors.rabbitmq.port.source import CONSUMER, RabbitSource
from isthmus.connectors.rabbitmq.protocol.connection import Content
from isthmus.connectors.rabbitmq.protocol.wire import M


class Rig:
    """A source of the messages that exist, whose channel works, and what is written to it."""

    def __init__(self, *, ordered: bool, messages: int) -> None:
        pool: Any = SimpleNamespace(mark=lambda _: None, unmark=lambda _: None, kept_until=lambda _: -math.inf)
        options = read_source(
            {
                "host": "localhost",
                "username": "u",
                "password": "env:P",
                "entity": "q",
                "entity_type": "queue",
                "dead_letters": "d",
            }
        )
        self.source = RabbitSource(pool, 1, options, ordered=ordered, only_present=True)
        self.written: list[bytes] = []
        self.source.connection = SimpleNamespace(  # type: ignore[assignment]
            write=self.written.append, flush=lambda: None, is_paused=False, error=None, broker="b"
        )
        self.source.is_open = True
        self.source._counted(messages)
        self._tag = 0

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
    rig = Rig(ordered=ordered, messages=3)
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


def test_a_message_of_a_lost_channel_that_is_set_aside_is_none_of_those_that_came_later() -> None:
    """It is redelivered, and set aside then."""
    rig = Rig(ordered=True, messages=3)
    rig.deliver(b"1", b"2", b"3")
    (first, second), _ = rig.take(2)
    rig.source.settle(second, second, Disposition("abandon"))
    rig.source.settle(first, first, Disposition("dead-letter", "Bad", "it is"))
    rig.source.on_method(CHANNEL, M.CHANNEL_CLOSE_OK, b"")
    rig.deliver(b"1", b"2", b"3", is_again=True)
    positions, is_over = rig.take(10)
    assert len(positions) == 3
    assert is_over
