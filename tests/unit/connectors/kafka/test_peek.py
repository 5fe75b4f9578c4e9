"""isthmus.connectors.kafka.peek, without a cluster."""

from __future__ import annotations

from typing import Any

import pytest

from isthmus.amqp import section
from isthmus.connectors.kafka import peek
from isthmus.connectors.kafka.cluster import TopicView


class Record:
    """confluent-kafka of 2.16 raises this where the name of a header is no UTF-8 text."""

    def __init__(self, offset: int) -> None:
        self._offset = offset

    def error(self) -> None:
        return None

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        return 1, 1000

    def key(self) -> bytes:
        return b"k"

    def value(self) -> bytes:
        return b"%d" % self._offset

    def headers(self) -> list[Any]:
        if self._offset == 1:
            raise SystemError("returned a result with an exception set")
        return []


class Consumer:
    def __init__(self, settings: Any) -> None:
        pass

    def get_watermark_offsets(self, topic_partition: Any, timeout: float) -> tuple[int, int]:
        return 0, 3

    def assign(self, topic_partitions: Any) -> None:
        pass

    def consume(self, count: int, timeout: float) -> list[Record]:
        return [Record(offset) for offset in range(3)][:count]

    def close(self) -> None:
        pass


def test_i4_a_record_whose_headers_cannot_be_read_ends_no_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peek, "describe_topic", lambda *_: TopicView("c", 1))
    monkeypatch.setattr(peek, "Consumer", Consumer)
    look = peek.TopicPeek({"bootstrap_servers": "a"}, "t")
    found = look(0, 10)
    assert [section.contents(each, *section.locate(each).body) for each in found] == [b"0", b"1", b"2"]
