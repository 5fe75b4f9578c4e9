"""isthmus.connectors.kafka.spark.source: the calls of Spark at the driver, without Spark's Java and without a cluster."""

from __future__ import annotations

import pickle
from typing import Any, ClassVar, Self

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import StructType

from isthmus.connectors.kafka.consumer.latest import Ends
from isthmus.connectors.kafka.spark import source
from isthmus.connectors.kafka.spark.row import SCHEMA
from isthmus.connectors.kafka.spark.topic import RecordsMissingError
from isthmus.errors import ConfigError, InvalidArgumentError
from pyspark_isthmus_kafka import DefaultSource

OPTIONS = {"bootstrap_servers": "a:1", "topic": "t"}


class Topic:
    """A topic whose edges the test sets."""

    edges_now: ClassVar[dict[int, tuple[int, int]]] = {}
    epochs_now: ClassVar[dict[int, int]] = {}
    truncations: ClassVar[dict[int, int]] = {}
    asked: ClassVar[list[dict[int, tuple[int, int]]]] = []
    identity = ""

    def __init__(self, *_: Any) -> None:
        self.committed: list[dict[int, int]] = []

    def edges(self) -> dict[int, tuple[int, int]]:
        return self.edges_now

    def ends(self) -> Ends:
        return Ends({number: high for number, (_, high) in self.edges_now.items()}, self.epochs_now)

    def truncated(self, offsets: dict[int, tuple[int, int]]) -> dict[int, int]:
        self.asked.append(offsets)
        return {number: at for number, at in self.truncations.items() if number in offsets}

    def commit(self, offsets: dict[int, int], epochs: dict[int, int]) -> None:
        self.committed.append(offsets)

    def close(self) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture(autouse=True)
def _topic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "_open", Topic)
    monkeypatch.setattr(Topic, "epochs_now", {})
    monkeypatch.setattr(Topic, "asked", [])
    monkeypatch.setattr(source, "QUERY_AGAIN_SECONDS", 0.0)


def made(**options: str) -> Any:
    return DefaultSource(CaseInsensitiveDict(OPTIONS | options))


def reader(**options: str) -> Any:
    return source.TopicStreamReader(source.read_options(OPTIONS | options))


@pytest.mark.parametrize(("start", "expected"), [("earliest", {"0": 3, "1": 0}), ("latest", {"0": 9, "1": 5})])
def test_where_a_query_without_checkpoint_begins(start: str, expected: dict[str, int]) -> None:
    Topic.edges_now = {0: (3, 9), 1: (0, 5)}
    assert reader(start=start).initialOffset() == {**expected, "begin": expected}


def test_a_batch_is_named_by_its_offsets() -> None:
    """I1."""
    Topic.edges_now = {0: (0, 9), 1: (0, 5)}
    stream = reader()
    end = stream.latestOffset({"0": 4, "1": 5}, ReadMaxRows(3))
    assert end == {"0": 7, "1": 5}
    (part,) = stream.partitions({"0": 4, "1": 5}, end)
    assert (part.number, part.first, part.stop) == (0, 4, 7)
    assert pickle.loads(pickle.dumps(stream)).options == stream.options
    assert stream.latestOffset({"0": 9, "1": 5}, ReadMaxRows(3)) == {"0": 9, "1": 5}


def _planned(first: Any, again: Any) -> list[tuple[int, int, int]]:
    """The ranges of the first batch: Spark asks where a query begins a second time, after the end of the batch or in another run."""
    Topic.edges_now = {0: (3, 9), 1: (0, 5)}
    start = first.initialOffset()
    Topic.edges_now = {0: (3, 11), 1: (0, 5)}
    end = first.latestOffset(start, ReadMaxRows(100))
    Topic.edges_now = {0: (6, 40), 1: (2, 50)}
    return [(each.number, each.first, each.stop) for each in again.partitions(again.initialOffset(), end)]


@pytest.mark.parametrize("is_same", [True, False])
@pytest.mark.parametrize("missing", ["fail", "skip"])
def test_i5_the_first_batch_begins_where_the_query_did(missing: str, is_same: bool) -> None:
    """With `latest` its ends were before the begin, and the whole topic was read."""
    stream = reader(start="latest", missing=missing)
    assert _planned(stream, stream if is_same else reader(start="latest", missing=missing)) == [(0, 9, 11)]
    assert _planned(reader(missing=missing), reader(missing=missing)) == [(0, 3, 11), (1, 0, 5)]


def test_i5_later_batches_begin_where_the_one_before_ended() -> None:
    Topic.edges_now = {0: (0, 9)}
    stream = reader(start="latest")
    first = stream.initialOffset()
    assert stream.latestOffset(first, ReadMaxRows(5)) == first, "nothing has come"
    Topic.edges_now = {0: (0, 11)}
    second = stream.latestOffset(first, ReadMaxRows(5))
    assert stream.latestOffset(second, ReadMaxRows(5)) == second, "no batch without records"
    Topic.edges_now = {0: (0, 13)}
    third = stream.latestOffset(second, ReadMaxRows(5))
    assert third == {"0": 13}
    assert [(each.first, each.stop) for each in stream.partitions(second, third)] == [(11, 13)]
    with_group = reader(group="g")
    with_group.commit(second)
    assert with_group._topic.committed == [{0: 11}]


def test_i5_a_query_of_what_is_available_that_begins_with_the_latest_has_nothing() -> None:
    """What came after it was asked up to where to read was called a topic that was made again."""
    Topic.edges_now = {0: (0, 9)}
    stream = reader(start="latest")
    stream.prepareForTriggerAvailableNow()
    Topic.edges_now = {0: (0, 12)}
    start = stream.initialOffset()
    end = stream.latestOffset(start, stream.getDefaultReadLimit())
    assert stream.partitions(start, end) == []
    assert end["0"] == 9


def test_what_comes_after_the_start_of_a_query_of_what_is_available_is_left() -> None:
    Topic.edges_now = {0: (0, 9)}
    stream = reader()
    stream.prepareForTriggerAvailableNow()
    Topic.edges_now = {0: (0, 12)}
    assert stream.latestOffset({"0": 0}, stream.getDefaultReadLimit()) == {"0": 9}
    assert stream.reportLatestOffset() == {"0": 12}


def test_only_a_query_with_a_group_commits() -> None:
    """I2."""
    with_group, without = reader(group="g"), reader()
    for each in (with_group, without):
        each.commit({"0": 7, "1": 2})
    assert with_group._topic.committed == [{0: 7, 1: 2}]
    assert without._topic.committed == []


def test_a_batch_read_has_the_partitions_with_something_in_them() -> None:
    Topic.edges_now = {0: (3, 9), 1: (5, 5)}
    read = source.TopicReader(source.read_options(OPTIONS))
    assert [(each.number, each.first, each.stop) for each in read.partitions()] == [(0, 3, 9)]  # type: ignore[attr-defined]


def test_a_batch_read_of_a_topic_without_records_has_no_rows() -> None:
    """Spark makes a partition of its own where a read has none: it failed with an AssertionError without a text."""
    Topic.edges_now = {0: (0, 0)}
    read = source.TopicReader(source.read_options(OPTIONS))
    assert read.partitions() == []
    assert list(read.read(InputPartition(None))) == []


def test_a_query_of_one_batch_has_all_records() -> None:
    """With the trigger `once` Spark requests all: `max_records` left the rest, and a query that is started daily fell behind."""
    Topic.edges_now = {0: (0, 9), 1: (0, 5)}
    assert reader(max_records="3").latestOffset({"0": 4, "1": 5}, ReadAllAvailable()) == {"0": 9, "1": 5}


def test_a_topic_that_was_made_again_is_told_or_read_from_its_first_record() -> None:
    """I3."""
    before = {"0": 700, "1": 5}
    Topic.edges_now = {0: (0, 3), 1: (0, 5)}
    with pytest.raises(
        RecordsMissingError, match="partition 0: the query has read up to offset 700, and the partition ends at 3"
    ):
        reader().latestOffset(before, ReadMaxRows(10))
    stream = reader(missing="skip")
    end = stream.latestOffset(before, ReadMaxRows(2))
    assert end == {"0": 2, "1": 5}
    (part,) = stream.partitions(before, end)
    assert (part.number, part.first, part.stop) == (0, 0, 2)
    assert stream.latestOffset(end, ReadMaxRows(10)) == {"0": 3, "1": 5}
    Topic.edges_now = {0: (0, 0)}  # with fewer partitions, and empty
    with pytest.raises(RecordsMissingError):
        reader().latestOffset({"0": 0, "1": 5}, ReadMaxRows(10))
    end = stream.latestOffset(before, ReadMaxRows(10))
    assert end == {"0": 0, "1": 0}
    assert stream.partitions(before, end) == []


def test_i3_a_topic_that_was_made_again_is_known_by_its_id_however_many_records_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first of them were passed over, without a report."""
    Topic.edges_now = {0: (0, 9)}
    monkeypatch.setattr(Topic, "identity", "cluster:one")
    begin = {"0": 2}
    before = reader().latestOffset(begin, ReadMaxRows(5))
    assert before == {"0": 7, "topic": "cluster:one"}
    assert reader().latestOffset(before, ReadMaxRows(0)) == before, "no batch without records"
    monkeypatch.setattr(Topic, "identity", "cluster:two")
    with pytest.raises(RecordsMissingError, match="read up to offset 7, and the partition is of a topic that was made"):
        reader().latestOffset(before, ReadMaxRows(7))
    stream = reader(missing="skip")
    end = stream.latestOffset(before, ReadMaxRows(7))
    assert end == {"0": 7, "topic": "cluster:two"}
    assert [(each.first, each.stop) for each in stream.partitions(before, end)] == [(0, 7)]
    assert stream.latestOffset(end, ReadMaxRows(7)) == {"0": 9, "topic": "cluster:two"}


def test_i3_a_topic_of_a_cluster_that_was_made_again_or_of_another_one_is_reported_or_read_from_its_first_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A checkpoint outlives its cluster: what a topic of another one has below its offsets was never read."""
    Topic.edges_now = {0: (0, 9)}
    monkeypatch.setattr(Topic, "identity", "rebuilt:two")
    before = {"0": 7, "topic": "cluster:one"}
    with pytest.raises(RecordsMissingError, match="read up to offset 7, and the partition is of a topic that was made"):
        reader().latestOffset(before, ReadMaxRows(9))
    stream = reader(missing="skip")
    end = stream.latestOffset(before, ReadMaxRows(9))
    assert [(each.first, each.stop) for each in stream.partitions(before, end)] == [(0, 9)]


def test_i1_a_batch_that_spark_repeats_has_no_records_of_a_topic_that_was_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Topic.edges_now = {0: (0, 3)}
    monkeypatch.setattr(Topic, "identity", "cluster:two")
    start, end = {"0": 2, "topic": "cluster:one"}, {"0": 7, "topic": "cluster:one"}
    with pytest.raises(RecordsMissingError, match="read up to offset 7, and the partition ends at 3"):
        reader().partitions(start, end)
    assert reader(missing="skip").partitions(start, end) == []


def test_i5_where_the_topic_was_made_again_before_the_first_batch_it_is_read_from_its_first_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Topic.edges_now = {0: (0, 9)}
    monkeypatch.setattr(Topic, "identity", "cluster:one")
    stream = reader(start="latest", missing="skip")
    start = stream.initialOffset()
    monkeypatch.setattr(Topic, "identity", "cluster:two")
    end = stream.latestOffset(start, ReadMaxRows(100))
    for each in (start, stream.initialOffset()):
        assert [(part.first, part.stop) for part in stream.partitions(each, end)] == [(0, 9)]


def test_i3_a_topic_that_was_made_again_with_as_many_records_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    Topic.edges_now = {0: (0, 5)}
    monkeypatch.setattr(Topic, "identity", "cluster:two")
    before = {"0": 5, "topic": "cluster:one"}
    end = reader(missing="skip").latestOffset(before, ReadMaxRows(9))
    assert [(each.first, each.stop) for each in reader(missing="skip").partitions(before, end)] == [(0, 5)]


def test_i6_a_log_that_was_truncated_and_has_grown_again_is_told_or_read_from_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The offset is there, and those before it are other records: they were passed over, and nothing was said."""
    Topic.edges_now = {0: (0, 100), 1: (0, 5)}
    monkeypatch.setattr(Topic, "epochs_now", {0: 5, 1: 2})
    before = reader().latestOffset({"0": 10, "1": 5}, ReadMaxRows(200))
    assert before == {"0": 100, "1": 5, "epochs": {"0": 5, "1": 2}}
    assert reader().latestOffset(before, ReadMaxRows(9)) == before
    assert Topic.asked == [], "the leader is the same"
    monkeypatch.setattr(Topic, "epochs_now", {0: 6, 1: 2})
    monkeypatch.setattr(Topic, "truncations", {0: 80})
    with pytest.raises(RecordsMissingError, match="up to offset 100, and the log was truncated at 80"):
        reader().latestOffset(before, ReadMaxRows(9))
    assert Topic.asked == [{0: (100, 5)}]
    for end, most, expected in ((130, 40, 120), (100, 40, 100), (90, 40, 90), (130, 5, 85)):
        Topic.edges_now = {0: (0, end), 1: (0, 5)}
        stream = reader(missing="skip")
        after = stream.latestOffset(before, ReadMaxRows(most))
        assert after["0"] == expected
        assert [(each.first, each.stop) for each in stream.partitions(before, after)] == [(80, expected)]
        monkeypatch.setattr(Topic, "asked", [])
        more = stream.latestOffset(after, ReadMaxRows(40))
        assert Topic.asked == []
        if end > expected:
            assert [(each.first, each.stop) for each in stream.partitions(after, more)] == [
                (expected, 125 if most == 5 else 130)
            ]
        else:
            assert more == after, "no batch without records"


def test_i6_a_log_that_was_not_truncated_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    Topic.edges_now = {0: (0, 100)}
    monkeypatch.setattr(Topic, "epochs_now", {0: 6})
    monkeypatch.setattr(Topic, "truncations", {})
    before = {"0": 100, "epochs": {"0": 5}}
    stream = reader()
    for _ in range(3):
        assert stream.latestOffset(before, ReadMaxRows(9)) == before
    assert Topic.asked == [{0: (100, 5)}]


def test_i6_epochs_of_another_topic_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    Topic.edges_now = {0: (0, 100)}
    monkeypatch.setattr(Topic, "epochs_now", {0: 1})
    monkeypatch.setattr(Topic, "identity", "cluster:two")
    before = {"0": 70, "topic": "cluster:one", "epochs": {"0": 5}}
    stream = reader(missing="skip")
    after = stream.latestOffset(before, ReadMaxRows(50))
    assert after == {"0": 50, "topic": "cluster:two", "epochs": {"0": 1}}
    assert Topic.asked == []


def test_a_checkpoint_of_a_release_before_names_no_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    Topic.edges_now = {0: (0, 9)}
    monkeypatch.setattr(Topic, "identity", "cluster:one")
    stream = reader()
    assert stream.latestOffset({"0": 9}, ReadMaxRows(5)) == {"0": 9}
    assert stream.latestOffset({"0": 7}, ReadMaxRows(5)) == {"0": 9, "topic": "cluster:one"}


def test_what_is_refused_when_the_query_is_planned() -> None:
    """I4, and I2 of the sink."""
    own = from_arrow_schema(SCHEMA)
    assert isinstance(made().reader(own), source.TopicReader)
    with pytest.raises(InvalidArgumentError, match="schema"):
        made().streamReader(StructType().add("value", "string"))
    with pytest.raises(ConfigError):
        made(nonsense="1").reader(own)
    with pytest.raises(InvalidArgumentError, match="overwritten"):
        made().writer(own, True)
    with pytest.raises(ConfigError, match="no column 'valu'"):
        made().writer(StructType().add("value", "string").add("valu", "string"), False)
