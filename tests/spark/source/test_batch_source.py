"""The data source as any data engineer uses it: a real namespace, the official SDK, and Spark's own sinks."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from isthmus.bridge.spark.arrow_batch import ARROW_BATCH_SETTING
from isthmus.replication.spark_session import create_spark_session
from isthmus.testing.namespace import NamespaceProcess, namespace

pytestmark = pytest.mark.spark

LONG_SECONDS = 120
QUEUES = 24


@pytest.fixture(name="spark", scope="module")
def _spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    session = create_spark_session("test", routes=2, work_directory=tmp_path_factory.mktemp("spark"))
    session.conf.set("spark.sql.shuffle.partitions", "2")
    yield session
    session.stop()


@pytest.fixture(name="served", scope="module")
def _served() -> Iterator[NamespaceProcess]:
    queues = "".join(f"  q{number}: {{lock_duration: 6s, max_delivery_count: 100}}\n" for number in range(QUEUES))
    with namespace(config=f"queues:\n{queues}") as running:
        yield running


@pytest.fixture(name="numbers", scope="module")
def _numbers() -> Iterator[int]:
    return iter(range(QUEUES))


@pytest.fixture(name="queue")
def _queue(served: NamespaceProcess, numbers: Iterator[int], tmp_path: Path) -> Queue:
    """A queue of the test's own, with short locks."""
    name = f"q{next(numbers)}"
    secrets = tmp_path / "secrets"
    secrets.write_text(f"NS={served.connection_string}\n")
    return Queue(served.connection_string, name, f"file:{secrets}#NS")


class Queue:
    """A queue as its publisher and its operator see it."""

    def __init__(self, connection_string: str, name: str, reference: str) -> None:
        self.connection_string = connection_string
        self.name = name
        self.reference = reference

    def send(self, first: int, count: int) -> None:
        with (
            ServiceBusClient.from_connection_string(self.connection_string) as client,
            client.get_queue_sender(self.name) as sender,
        ):
            for start in range(first, first + count, 500):
                stop = min(start + 500, first + count)
                sender.send_messages([ServiceBusMessage(b"body", message_id=f"m{n}") for n in range(start, stop)])

    def remaining(self) -> list[str]:
        """Ids of the messages that are here, locked or not."""
        with (
            ServiceBusClient.from_connection_string(self.connection_string) as client,
            client.get_queue_receiver(self.name) as receiver,
        ):
            found: list[str] = []
            number = 0
            while page := receiver.peek_messages(250, sequence_number=number):
                found += [str(message.message_id) for message in page]
                number = (page[-1].sequence_number or 0) + 1
            return found

    def wait_empty(self) -> None:
        limit = time.monotonic() + LONG_SECONDS
        while left := self.remaining():
            assert time.monotonic() < limit, f"{len(left)} messages still stand"
            time.sleep(0.1)

    def read(self, spark: SparkSession, **options: str) -> DataFrame:
        return (
            spark.readStream.format("servicebus")
            .options(connection=self.reference, entity=self.name, mode="decoded", **options)
            .load()
        )


def ids(first: int, count: int) -> list[str]:
    return sorted(f"m{number}" for number in range(first, first + count))


def message_ids(spark: SparkSession, folder: Path) -> list[str]:
    rows = spark.read.parquet(str(folder)).select("message_id").collect()
    return sorted(row.message_id for row in rows)


def each_batch(
    frame: DataFrame, folder: Path, function: Callable[[DataFrame, int], Any], *, available_now: bool = True
) -> StreamingQuery:
    writer = frame.writeStream.foreachBatch(function).option("checkpointLocation", str(folder / "checkpoint"))
    return (writer.trigger(availableNow=True) if available_now else writer).start()


def into_parquet(frame: DataFrame, folder: Path, *, available_now: bool = True) -> StreamingQuery:
    writer = (
        frame.writeStream.format("parquet")
        .option("path", str(folder / "table"))
        .option("checkpointLocation", str(folder / "checkpoint"))
    )
    return (writer.trigger(availableNow=True) if available_now else writer).start()


# ---- what a batch is


def test_two_actions_of_one_batch_read_the_same_messages(spark: SparkSession, queue: Queue, tmp_path: Path) -> None:
    queue.send(0, 200)

    def write(batch: DataFrame, _: int) -> None:
        if batch.isEmpty():
            return
        batch.where("sequence_number % 2 = 0").write.mode("append").parquet(str(tmp_path / "even"))
        queue.send(200, 1)  # what comes meanwhile belongs to a later batch
        batch.where("sequence_number % 2 = 1").write.mode("append").parquet(str(tmp_path / "odd"))

    query = each_batch(queue.read(spark), tmp_path, write)
    assert query.awaitTermination(LONG_SECONDS)
    written = message_ids(spark, tmp_path / "even") + message_ids(spark, tmp_path / "odd")
    assert sorted(written) == ids(0, 200)
    assert queue.remaining() == ["m200"]


@pytest.mark.parametrize("part", ["limit", "take", "isEmpty"])
def test_a_batch_that_is_read_in_part_alone_settles_nothing_and_fails(
    spark: SparkSession, queue: Queue, tmp_path: Path, part: str
) -> None:
    """All rows of so small a batch are in Spark's buffers when the first one is taken."""
    queue.send(0, 30)

    def write(batch: DataFrame, _: int) -> None:
        if part == "limit":
            batch.limit(10).write.mode("append").parquet(str(tmp_path / "table"))
        elif part == "take":
            batch.take(3)
        else:
            batch.isEmpty()

    query = each_batch(queue.read(spark), tmp_path, write)
    with pytest.raises(StreamingQueryException, match=r"read only in part.*persist\(\)"):
        query.awaitTermination(LONG_SECONDS)
    assert sorted(queue.remaining()) == ids(0, 30)


def test_a_task_that_failed_reads_the_same_messages_again(spark: SparkSession, queue: Queue, tmp_path: Path) -> None:
    queue.send(0, 100)
    failed: list[int] = []

    def write(batch: DataFrame, number: int) -> None:
        batch.write.mode("append").parquet(str(tmp_path / f"attempt-{len(failed)}"))
        if not failed:
            failed.append(number)
            raise RuntimeError("planted")

    with pytest.raises(StreamingQueryException, match="planted"):
        each_batch(queue.read(spark), tmp_path, write).awaitTermination(LONG_SECONDS)
    assert sorted(queue.remaining()) == ids(0, 100)
    # Not waiting for the locks of the first attempt: the batch is what it was.
    assert each_batch(queue.read(spark), tmp_path, write).awaitTermination(LONG_SECONDS)
    assert message_ids(spark, tmp_path / "attempt-1") == ids(0, 100)
    assert queue.remaining() == []


# ---- with every sink


def test_without_options_rows_come_to_parquet_and_nothing_but_them(
    spark: SparkSession, queue: Queue, tmp_path: Path
) -> None:
    queue.send(0, 100)
    query = into_parquet(queue.read(spark), tmp_path, available_now=False)
    try:
        queue.wait_empty()
        queue.send(100, 50)
        queue.wait_empty()
        assert message_ids(spark, tmp_path / "table") == ids(0, 150)
        assert sum(progress["numInputRows"] for progress in query.recentProgress) == 150
        progress = query.lastProgress
        assert progress is not None
        assert queue.name in str(progress["sources"][0]["latestOffset"])
    finally:
        query.stop()


def test_without_options_rows_come_to_memory(spark: SparkSession, queue: Queue) -> None:
    queue.send(0, 20)
    query = queue.read(spark).writeStream.format("memory").queryName("shown").trigger(availableNow=True).start()
    assert query.awaitTermination(LONG_SECONDS)
    assert sorted(row.message_id for row in spark.table("shown").collect()) == ids(0, 20)
    assert queue.remaining() == []


def test_available_now_makes_no_empty_batch_and_ends_with_what_was_there_at_its_start(
    spark: SparkSession, queue: Queue, tmp_path: Path
) -> None:
    queue.send(0, 3000)

    def write(batch: DataFrame, _: int) -> None:
        queue.send(3000, 1)
        batch.write.mode("append").parquet(str(tmp_path / "table"))

    query = each_batch(queue.read(spark), tmp_path, write)
    assert query.awaitTermination(LONG_SECONDS)
    assert message_ids(spark, tmp_path / "table") == ids(0, 3000)
    assert set(queue.remaining()) == {"m3000"}
    assert [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"] == 0] == []
    assert len(query.recentProgress) == 1  # 3,000 messages are one batch of a second


# ---- refused when planned


def test_overwriting_is_refused(spark: SparkSession, queue: Queue) -> None:
    frame = spark.createDataFrame([(b"x",)], "body binary")
    writer = frame.write.format("servicebus").options(connection=queue.reference, entity=queue.name)
    with pytest.raises(PySparkException, match=r"write mode\('append'\)"):
        writer.mode("overwrite").save()
    assert queue.remaining() == []


def test_columns_that_nothing_would_be_written_from_are_refused(spark: SparkSession, queue: Queue) -> None:
    frame = spark.createDataFrame([(b"x", "m1")], "body binary, messageid string")
    writer = frame.write.format("servicebus").options(connection=queue.reference, entity=queue.name)
    with pytest.raises(PySparkException, match="no column 'messageid'; write message_id"):
        writer.mode("append").save()
    assert queue.remaining() == []


def test_another_schema_is_refused_before_a_task_runs(spark: SparkSession, queue: Queue, tmp_path: Path) -> None:
    options = {"connection": queue.reference, "entity": queue.name, "mode": "decoded"}
    wrong = "body string, sequence_number long"
    with pytest.raises(PySparkException, match=r"remove \.schema"):
        spark.read.format("servicebus").schema(wrong).options(**options).load().collect()
    streamed = spark.readStream.format("servicebus").schema(wrong).options(**options).load()
    with pytest.raises(PySparkException, match=r"remove \.schema"):
        into_parquet(streamed, tmp_path, available_now=False).awaitTermination(LONG_SECONDS)


# ---- after a crash


def test_a_batch_that_is_skipped_after_a_restart_is_settled(spark: SparkSession, queue: Queue, tmp_path: Path) -> None:
    """The table has it, Spark's log has not: the sink skips what it knows, and nothing is read."""
    queue.send(0, 100)
    done: list[int] = []

    def write(batch: DataFrame, number: int) -> None:
        if number in done:
            return
        batch.write.mode("append").parquet(str(tmp_path / "table"))
        done.append(number)
        if number == 0:
            raise RuntimeError("planted")

    with pytest.raises(StreamingQueryException, match="planted"):
        each_batch(queue.read(spark), tmp_path, write).awaitTermination(LONG_SECONDS)
    assert each_batch(queue.read(spark), tmp_path, write).awaitTermination(LONG_SECONDS)
    assert message_ids(spark, tmp_path / "table") == ids(0, 100)
    assert queue.remaining() == []


def test_where_the_folder_of_batches_is_lost_a_merge_keeps_each_message_once(
    spark: SparkSession, queue: Queue, tmp_path: Path
) -> None:
    """The statement of the guide, by (entity, sequence number); without it the table has every message twice."""
    queue.send(0, 20)
    table, landing, spool = (tmp_path / name for name in ("table", "landing", "spool"))
    key = ["entity", "sequence_number"]
    rows = queue.read(spark, spool=str(spool)).withColumn("entity", F.lit(queue.name))
    spark.createDataFrame([], rows.schema).write.parquet(str(table))
    attempts: list[int] = []

    def write(batch: DataFrame, number: int) -> None:
        batch = batch.persist()
        batch.write.mode("append").parquet(str(landing))
        known = spark.read.parquet(str(table)).select(*key)
        batch.dropDuplicates(key).join(known, key, "left_anti").write.mode("append").parquet(str(table))
        batch.unpersist()
        attempts.append(number)
        if len(attempts) == 1:
            raise RuntimeError("planted")

    with pytest.raises(StreamingQueryException, match="planted"):
        each_batch(rows, tmp_path, write).awaitTermination(LONG_SECONDS)
    shutil.rmtree(spool)
    assert each_batch(rows, tmp_path, write).awaitTermination(LONG_SECONDS)
    assert message_ids(spark, landing) == sorted(ids(0, 20) * 2)
    assert message_ids(spark, table) == ids(0, 20)
    assert queue.remaining() == []


def test_where_the_folder_of_batches_is_lost_a_table_that_skips_the_batch_misses_nothing(
    spark: SparkSession, queue: Queue, tmp_path: Path
) -> None:
    """One of two tables has the batch already: other messages under its number would come to the second one alone."""
    queue.send(0, 20)
    first, second, spool = (tmp_path / name for name in ("first", "second", "spool"))
    rows = queue.read(spark, spool=str(spool))
    known: set[int] = set()

    def write(batch: DataFrame, number: int) -> None:
        if number not in known:
            batch.write.mode("append").parquet(str(first))
            known.add(number)
            if number == 0:
                raise RuntimeError("planted")
        batch.write.mode("append").parquet(str(second))

    with pytest.raises(StreamingQueryException, match="planted"):
        each_batch(rows, tmp_path, write).awaitTermination(LONG_SECONDS)
    shutil.rmtree(spool)
    queue.send(20, 20)
    assert each_batch(rows, tmp_path, write).awaitTermination(LONG_SECONDS)
    assert set(message_ids(spark, first)) == set(ids(0, 40))
    assert message_ids(spark, second) == ids(0, 40)
    assert queue.remaining() == []


def test_a_row_that_a_repeated_batch_has_dead_lettered_stops_nothing(
    spark: SparkSession, queue: Queue, numbers: Iterator[int], tmp_path: Path
) -> None:
    queue.send(0, 10)
    target = Queue(queue.connection_string, f"q{next(numbers)}", queue.reference)
    target_options = {"connection": queue.reference, "entity": target.name}
    source = {"source_connection": queue.reference, "source_entity": queue.name}
    attempts: list[int] = []

    def write(batch: DataFrame, number: int) -> None:
        rows = batch.withColumn("disposition", F.when(F.col("message_id") == "m3", F.lit("dead-letter")))
        rows.write.format("servicebus").options(**target_options, **source).mode("append").save()
        attempts.append(number)
        if len(attempts) == 1:
            raise RuntimeError("planted")

    with pytest.raises(StreamingQueryException, match="planted"):
        each_batch(queue.read(spark), tmp_path, write).awaitTermination(LONG_SECONDS)
    assert each_batch(queue.read(spark), tmp_path, write).awaitTermination(LONG_SECONDS)
    assert sorted(set(target.remaining())) == sorted(set(ids(0, 10)) - {"m3"})
    assert queue.remaining() == []


# ---- another session


def test_a_session_of_spark_alone_needs_no_setting(spark: SparkSession, queue: Queue, tmp_path: Path) -> None:
    """Spark's own default of what it gathers, at which the routes of a run are refused."""
    queue.send(0, 10)
    ours = spark.conf.get(ARROW_BATCH_SETTING)
    assert ours is not None
    spark.conf.unset(ARROW_BATCH_SETTING)
    try:
        assert into_parquet(queue.read(spark), tmp_path).awaitTermination(LONG_SECONDS)
    finally:
        spark.conf.set(ARROW_BATCH_SETTING, ours)
    assert message_ids(spark, tmp_path / "table") == ids(0, 10)
