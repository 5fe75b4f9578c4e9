"""isthmus.connectors.kafka.spark.topic: records that are removed while a topic is read, without a cluster."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from confluent_kafka import KafkaError, TopicPartition

from isthmus.connectors.kafka.spark import topic as module
from isthmus.connectors.kafka.spark.option import read_options
from isthmus.connectors.kafka.spark.topic import RecordsMissingError, Topic


class Record:
    def __init__(self, offset: int, error: int | None = None) -> None:
        self._offset, self._error = offset, error

    def offset(self) -> int:
        return self._offset

    def partition(self) -> int:
        return 0

    def error(self) -> KafkaError | None:
        return None if self._error is None else KafkaError(self._error)


class Consumer:
    """Gives two records; then the retention has removed what follows."""

    settings: ClassVar[dict[str, Any]] = {}

    def __init__(self, settings: dict[str, Any]) -> None:
        Consumer.settings = settings
        self._low = 0
        self._pages = [[Record(0), Record(1)], [Record(-1001, KafkaError._AUTO_OFFSET_RESET)]]

    def get_watermark_offsets(self, where: Any, timeout: float) -> tuple[int, int]:
        return self._low, 9

    def assign(self, partitions: Any) -> None:
        pass

    def consume(self, count: int, timeout: float) -> list[Record]:
        self._low = 5
        return self._pages.pop(0)

    def close(self) -> None:
        pass


def test_i2_records_that_are_removed_while_they_are_read_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "Consumer", Consumer)
    options = read_options({"bootstrap_servers": "a:1", "topic": "t"})
    with Topic(options, "t") as topic:
        pages = topic.records(0, 0, 9)
        assert [each.offset() for each in next(pages)] == [0, 1]
        with pytest.raises(RecordsMissingError, match="from offset 2 up to 5"):
            next(pages)
    assert Consumer.settings["auto.offset.reset"] == "error"
    Topic(options, "t", may_miss=True).close()
    assert Consumer.settings["auto.offset.reset"] == "earliest"


@pytest.mark.parametrize("missing", ["fail", "skip"])
def test_i2_what_is_behind_the_end_of_a_topic_that_was_truncated_is_reported_or_passed_over(
    monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    """A batch that Spark repeated failed for ever, though what is missing was to be passed over."""

    class Truncated(Consumer):
        def get_watermark_offsets(self, where: Any, timeout: float) -> tuple[int, int]:
            return 0, 1

        def consume(self, count: int, timeout: float) -> list[Record]:
            pages = [[Record(0)], [Record(1, KafkaError._PARTITION_EOF)]]
            self._low += 1
            return pages[self._low - 1] if self._low <= len(pages) else []

    monkeypatch.setattr(module, "Consumer", Truncated)
    monkeypatch.setattr(module, "SILENCE_SECONDS", 0.0)
    options = read_options({"bootstrap_servers": "a:1", "topic": "t"})
    with Topic(options, "t", may_miss=missing == "skip") as topic:
        pages = topic.records(0, 0, 9)
        assert [each.offset() for each in next(pages)] == [0]
        if missing == "skip":
            assert list(pages) == []
        else:
            with pytest.raises(RecordsMissingError, match="from offset 1 up to 9"):
                next(pages)


@pytest.mark.parametrize(("begin", "expected"), [(80, {0: 80}), (100, {}), (120, {})])
def test_where_a_log_was_truncated_is_where_its_reading_begins(
    monkeypatch: pytest.MonkeyPatch, begin: int, expected: dict[int, int]
) -> None:
    """librdkafka begins there after a seek, and not where a partition is assigned. 120: what was before was removed."""

    class Epochs(Consumer):
        sought: ClassVar[list[tuple[int, int | None]]] = []

        def offsets_for_times(self, places: Any, timeout: float) -> Any:
            return [TopicPartition("t", each.partition, 90, leader_epoch=6) for each in places]

        def assign(self, places: Any) -> None:
            assert [each.offset for each in places] == [90], "a fetch behind the end would begin with the first record"

        def seek(self, place: Any) -> None:
            self.sought.append((place.offset, place.leader_epoch))

        def consume(self, count: int, timeout: float) -> list[Record]:
            return [Record(begin, KafkaError._PARTITION_EOF)] if begin == 80 else [Record(begin), Record(begin + 1)]

    monkeypatch.setattr(module, "Consumer", Epochs)
    monkeypatch.setattr(Epochs, "sought", [])
    with Topic(read_options({"bootstrap_servers": "a:1", "topic": "t"}), "t") as topic:
        assert topic.truncated({0: (100, 5)}) == expected
    assert Epochs.sought == [(100, 5)]
    assert Consumer.settings["auto.offset.reset"] == "earliest"


def test_i1_of_a_topic_that_ends_before_the_first_record_of_a_batch_nothing_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The client begins with the first record then: a batch that Spark repeated had records of earlier batches, which come again later."""

    class Shorter(Consumer):
        def get_watermark_offsets(self, where: Any, timeout: float) -> tuple[int, int]:
            return 0, 2

        def consume(self, count: int, timeout: float) -> list[Record]:
            pages = [[Record(0), Record(1)], [Record(2, KafkaError._PARTITION_EOF)]]
            self._low += 1
            return pages[self._low - 1] if self._low <= len(pages) else []

    monkeypatch.setattr(module, "Consumer", Shorter)
    monkeypatch.setattr(module, "SILENCE_SECONDS", 0.0)
    options = read_options({"bootstrap_servers": "a:1", "topic": "t"})
    with Topic(options, "t", may_miss=True) as topic:
        assert list(topic.records(0, 7, 9)) == []
