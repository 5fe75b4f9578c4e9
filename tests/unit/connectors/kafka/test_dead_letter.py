"""isthmus.connectors.kafka.dead_letter."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from isthmus.amqp import section
from isthmus.bridge.delivery_event import Disposition
from isthmus.connectors.amqp import copy_limit
from isthmus.connectors.kafka import dead_letter
from isthmus.connectors.kafka.dead_letter import DeadLetterTopic
from isthmus.connectors.kafka.option import read_source


class Producer:
    """A producer with room for two records, which a test answers."""

    def __init__(self, settings: Any) -> None:
        del settings
        self.answers: list[Callable[[Any, Any], None]] = []

    def produce(self, topic: str, *, on_delivery: Callable[[Any, Any], None], **_: Any) -> None:
        if len(self.answers) >= 2:
            raise BufferError
        self.answers.append(on_delivery)

    def poll(self, timeout: float) -> None:
        pass

    def acknowledge(self) -> None:
        self.answers.pop(0)(None, SimpleNamespace(offset=lambda: 1))


def test_i5_the_source_stops_where_no_record_is_acknowledged(monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner has settled them: the topic would be read to its end, and each record kept here."""
    monkeypatch.setattr(copy_limit, "MOST_COPIES", 3)
    monkeypatch.setattr(dead_letter, "Producer", Producer)
    options = read_source({"bootstrap_servers": "h:9092", "topic": "t", "group": "g", "dead_letter_topic": "dead"})
    dead, lock = DeadLetterTopic(options), threading.Condition()
    for position in range(3):
        assert not dead.is_full
        dead.keep((position,), (section.encode_message(b"x"),))
        dead.add(position, position, Disposition("dead-letter", "Bad", "it is"))
    assert dead.is_full
    assert dead.serve(lock) == []
    assert dead.is_full, "the third waits for room at the producer"
    dead._producer.acknowledge()
    assert not dead.is_full
    assert dead.serve(lock) == [0]
    monkeypatch.setattr(copy_limit, "MOST_BYTES", 2)
    assert dead.is_full
    for _ in range(2):
        dead._producer.acknowledge()
    assert not dead.is_full
    assert dead.serve(lock) == [1, 2]
