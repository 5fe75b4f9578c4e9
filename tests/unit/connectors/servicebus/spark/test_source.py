"""Spark's calls of a streaming read at the driver, before anything connects."""

import errno
import os
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StringType, StructField, StructType

from isthmus.connectors.servicebus.batch import store as store_module
from isthmus.connectors.servicebus.batch.error import BatchEntityError, BatchInUseError, BatchLockError
from isthmus.connectors.servicebus.batch.store import BatchStore
from isthmus.connectors.servicebus.option import SourceOptions
from isthmus.connectors.servicebus.spark.source import (
    BatchPartition,
    BatchReader,
    ServiceBusDataSource,
)
from isthmus.errors import InvalidArgumentError

OPTIONS = {"connection": "env:NOT_SET", "entity": "q"}


@pytest.fixture(name="batches")
def _batches(tmp_path: Path) -> Iterator[BatchReader]:
    reader = BatchReader(SourceOptions.read(OPTIONS | {"spool": str(tmp_path)}))
    yield reader
    reader.stop()


def kept(spool: Path) -> BatchStore:
    """The folder that an earlier run has left."""
    store = BatchStore(spool / "abc")
    store.folder.mkdir()
    (store.folder / "owner").touch()
    (store.folder / "entity").write_text("q")
    return store


def test_a_batch_whose_folder_is_lost_stays_empty_and_the_next_one_does_not_i3(batches: BatchReader) -> None:
    lost = {"batch": 8, "batches": "abc"}
    for _ in range(2):
        assert batches.partitions({"batch": 7}, lost) == []
    assert len(batches.partitions(lost, {"batch": 9, "batches": "abc"})) == 1


def test_a_batch_whose_folder_was_lost_stays_empty_also_where_the_run_that_found_that_was_killed_i3(
    tmp_path: Path,
) -> None:
    """Its folder is there by then. The batch took other messages, which a sink that had the batch skipped, and which were settled."""
    options = SourceOptions.read(OPTIONS | {"spool": str(tmp_path)})
    lost = {"batch": 8, "batches": "abc"}
    killed, after = BatchReader(options), BatchReader(options)
    assert killed.partitions({"batch": 7}, lost) == []
    assert killed._store is not None
    assert killed._store._owner is not None
    os.close(killed._store._owner)  # as its end does, without the removal of the folder
    killed._store._owner = None
    assert after.partitions({"batch": 7}, lost) == []
    assert len(after.partitions(lost, {"batch": 9, "batches": "abc"})) == 1
    killed.stop()
    after.stop()


@pytest.mark.parametrize("call", ["claim", "entity"])
def test_a_batch_whose_folder_was_lost_stays_empty_also_where_the_folder_could_not_be_made_at_first_i3(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """A full disk, or a mount without locks: that attempt left a folder, and the next one took it for that of an earlier run."""
    options = SourceOptions.read(OPTIONS | {"spool": str(tmp_path)})
    lost = {"batch": 8, "batches": "abc"}
    failing, after = BatchReader(options), BatchReader(options)

    def has_no_locks(*_: object) -> bool:
        raise OSError(errno.ENOLCK, "No locks available")

    def is_full(store: BatchStore, _: str) -> str:
        assert store._owner is not None
        os.close(store._owner)  # as the end of its process does
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        if call == "claim":
            patched.setattr(store_module, "_locked", has_no_locks)
        else:
            patched.setattr(BatchStore, "entity", is_full)
        with pytest.raises((OSError, BatchLockError)):
            failing.partitions({"batch": 7}, lost)
    assert (tmp_path / "abc" / "owner").exists()
    assert after.partitions({"batch": 7}, lost) == []
    assert len(after.partitions(lost, {"batch": 9, "batches": "abc"})) == 1
    after.stop()


def test_a_batch_whose_messages_are_settled_stays_empty_i3(tmp_path: Path, batches: BatchReader) -> None:
    """Of a checkpoint that was set back: one of two tables has the batch, and would miss other messages under its number."""
    store = kept(tmp_path)
    store.set_settled(9)
    before, settled = ({"batch": number, "batches": "abc"} for number in (8, 9))
    assert batches.partitions({"batch": 7}, before) == []
    assert batches.latestOffset(before, ReadAllAvailable()) == settled
    assert batches.partitions(before, settled) == []
    assert store.settled() == 9
    assert len(batches.partitions(settled, {"batch": 10, "batches": "abc"})) == 1


def test_a_batch_that_is_planned_first_after_its_folder_was_cleared_is_read(batches: BatchReader) -> None:
    """A query that has settled everything leaves no folder."""
    batches._here._available_now = True  # and nothing is there: it looks at nothing
    start = {"batch": 7, "batches": "abc"}
    batches.latestOffset(start, ReadAllAvailable())
    assert len(batches.partitions(start, {"batch": 8, "batches": "abc"})) == 1


def test_an_offset_that_stays_is_the_same_text(batches: BatchReader) -> None:
    """Spark compares offsets as text: another key would be new data."""
    batches._here._available_now = True  # and nothing is there: it looks at nothing
    start = {"batch": 7, "of another release": True}
    assert batches.latestOffset(start, ReadAllAvailable()) == start


def test_the_offset_leads_to_the_folder_of_the_batches_after_a_restart(tmp_path: Path, batches: BatchReader) -> None:
    kept(tmp_path)
    offset = {"batch": 8, "batches": "abc"}
    (partition,) = batches.partitions({"batch": 7}, offset)
    assert isinstance(partition, BatchPartition)
    assert (partition.batch, Path(partition.folder)) == (8, tmp_path / "abc")
    batches._here._available_now = True  # and nothing is there: it looks at nothing
    assert batches.latestOffset(offset, ReadAllAvailable()) == offset


def test_a_batch_that_an_earlier_run_received_keeps_its_readers(tmp_path: Path, batches: BatchReader) -> None:
    store = kept(tmp_path)
    store.writer(8, 2).complete(1000)
    assert len(batches.partitions({"batch": 7}, {"batch": 8, "batches": "abc"})) == 3


def test_a_batch_that_an_earlier_run_received_gets_no_further_readers_i2(tmp_path: Path) -> None:
    """One with more `partitions`: they received messages for it, which a table that had the batch skipped, and which were settled."""
    store = kept(tmp_path)
    store.writer(8, 0).complete(1000)
    options = OPTIONS | {"spool": str(tmp_path), "ordered": "false", "partitions": "2"}
    reader = BatchReader(SourceOptions.read(options))
    start, repeated = {"batch": 7}, {"batch": 8, "batches": "abc"}
    assert len(reader.partitions(start, repeated)) == 1
    following = {"batch": 9, "batches": "abc"}
    assert len(reader.partitions(repeated, following)) == 2
    store.writer(9, 0).complete(1000)
    assert len(reader.partitions(repeated, following)) == 2, "one of its own readers was the first to end"
    reader.stop()


def test_two_queries_do_not_share_a_checkpoint(
    tmp_path: Path, batches: BatchReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "OWNER_SECONDS", 0.0)
    batches.partitions({"batch": 7}, {"batch": 8, "batches": "abc"})
    other = BatchReader(SourceOptions.read(OPTIONS | {"spool": str(tmp_path)}))
    with pytest.raises(BatchInUseError, match="checkpointLocation of its own"):
        other.partitions({"batch": 7}, {"batch": 8, "batches": "abc"})
    other.stop()


def test_what_goes_to_the_workers_is_pickled_without_the_drivers_part(batches: BatchReader) -> None:
    batches.partitions({"batch": 7}, {"batch": 8, "batches": "abc"})
    copy = pickle.loads(pickle.dumps(batches))
    assert copy.options == batches.options


def test_another_schema_is_refused_i4() -> None:
    source = ServiceBusDataSource({"connection": "env:X", "entity": "q", "mode": "decoded"})
    wrong = StructType([StructField("body", StringType())])
    for make in (source.reader, source.streamReader):
        with pytest.raises(
            InvalidArgumentError, match=r"struct<body:string> does not match mode=decoded; remove \.schema"
        ):
            make(wrong)


def test_a_checkpoint_of_another_entity_is_refused_while_messages_of_it_are_unsettled(tmp_path: Path) -> None:
    """Their tokens would be refused at the wrong entity, and a subscription beside it counts alike."""
    store = kept(tmp_path)
    assert store.entity("q") == "q"
    writer = store.writer(1, 0)
    writer.add([1], [b"t" * 16], [b"m"])
    writer.complete(30_000)
    start, end = {"batch": 0}, {"batch": 1, "batches": "abc"}
    other = BatchReader(SourceOptions.read(OPTIONS | {"spool": str(tmp_path), "entity": "another"}))
    with pytest.raises(BatchEntityError, match=r"'another': the checkpoint belongs to a query of .*checkpointLocation"):
        other.partitions(start, end)
    again = BatchReader(SourceOptions.read(OPTIONS | {"spool": str(tmp_path)}))
    assert len(again.partitions(start, end)) == 1
    again.stop()
