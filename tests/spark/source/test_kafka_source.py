"""`format("isthmus_kafka")` as any data engineer uses it: a real broker, and Spark's own sinks."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from harness.bridge.kafka_join import consumed, publish
from harness.check.until import until
from harness.server.kafka_broker import KafkaBroker, broker
from isthmus.connectors.kafka.group import GroupOffsets
from isthmus.replication.spark_session import create_spark_session

pytestmark = pytest.mark.spark

SECONDS = 240


@pytest.fixture(name="kafka", scope="module")
def _kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    with broker(tmp_path_factory.mktemp("kafka")) as running:
        yield running


@pytest.fixture(name="spark", scope="module")
def _spark(kafka: KafkaBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    # The broker first: where there is none, the tests are passed over before Spark starts.
    session = create_spark_session("test", routes=2, work_directory=tmp_path_factory.mktemp("spark"))
    session.conf.set("spark.sql.shuffle.partitions", "2")
    yield session
    session.stop()


def read(spark: SparkSession, kafka: KafkaBroker, topic: str, **options: str) -> DataFrame:
    return spark.read.format("isthmus_kafka").options(bootstrap_servers=kafka.address, topic=topic, **options).load()


def numbers(frame: DataFrame) -> list[int]:
    return sorted(int(bytes(row.value)) for row in frame.select("value").collect())


def test_a_batch_is_read_and_written_again(spark: SparkSession, kafka: KafkaBroker) -> None:
    kafka.create("source", 3)
    kafka.create("copy", 3)
    publish(kafka.address, "source", 0, 500, keys=7)
    publish(kafka.address, "source", 500, 510, partition=1)
    found = read(spark, kafka, "source")
    assert numbers(found) == list(range(510))
    marked = found.select(F.explode("headers").alias("header")).groupBy("header.key").count().collect()
    assert [(row.key, row["count"]) for row in marked] == [("n", 73)]
    found.write.format("isthmus_kafka").mode("append").options(bootstrap_servers=kafka.address, topic="copy").save()
    before, after = consumed(kafka.address, "source", 510), consumed(kafka.address, "copy", 510)
    assert {number: sorted(map(reported, each)) for number, each in after.items()} == {
        number: sorted(map(reported, each)) for number, each in before.items()
    }


def reported(record: Any) -> tuple[Any, ...]:
    return record.key() or b"", record.value(), tuple(record.headers() or ()), record.timestamp()[1]


def test_a_stream_continues_after_its_checkpoint_and_shows_how_far_it_is(
    spark: SparkSession, kafka: KafkaBroker, tmp_path: Path
) -> None:
    kafka.create("events", 2)
    publish(kafka.address, "events", 0, 300, keys=5)

    def run() -> list[int]:
        frame = (
            spark.readStream.format("isthmus_kafka")
            .options(bootstrap_servers=kafka.address, topic="events", max_records="120", group="shown")
            .load()
        )
        query = (
            frame.writeStream.format("parquet")
            .option("path", str(tmp_path / "table"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(SECONDS)
        assert all(each["numInputRows"] <= 120 for each in query.recentProgress)
        return numbers(spark.read.parquet(str(tmp_path / "table")))

    assert run() == list(range(300))
    publish(kafka.address, "events", 300, 350, keys=5)
    assert run() == list(range(350))
    shown = GroupOffsets({"bootstrap_servers": kafka.address}).committed("shown", "events")
    assert 0 < sum(shown.values()) <= 350


def test_a_stream_that_begins_with_the_latest_and_fails_in_its_first_batch_reads_nothing_from_before(
    spark: SparkSession, kafka: KafkaBroker, tmp_path: Path
) -> None:
    """Spark repeats the batch, and asks where the query begins, when the end is another: the whole topic was read."""
    kafka.create("late", 2)
    publish(kafka.address, "late", 0, 100, keys=5)
    found: list[int] = []

    def run(take: Callable[[DataFrame, int], None]) -> None:
        frame = (
            spark.readStream.format("isthmus_kafka")
            .options(bootstrap_servers=kafka.address, topic="late", start="latest")
            .load()
        )
        checkpoint = str(tmp_path / "checkpoint")
        query = frame.writeStream.foreachBatch(take).option("checkpointLocation", checkpoint)
        assert query.trigger(availableNow=True).start().awaitTermination(SECONDS)

    def fail(frame: DataFrame, batch: int) -> None:
        raise ValueError(f"batch {batch}")

    with pytest.raises(PySparkException, match="batch 0"):
        run(fail)
    publish(kafka.address, "late", 100, 150, keys=5)
    run(lambda frame, _: found.extend(numbers(frame)))
    assert sorted(found) == list(range(100, 150))


def test_a_topic_that_was_made_again_with_more_records_is_reported_or_read_whole(
    spark: SparkSession, kafka: KafkaBroker, tmp_path: Path
) -> None:
    """Its first records were passed over, without a report."""
    found: list[int] = []

    def run(**options: str) -> None:
        frame = spark.readStream.format("isthmus_kafka").options(
            bootstrap_servers=kafka.address, topic="again", **options
        )
        writer = frame.load().writeStream.foreachBatch(lambda rows, _: found.extend(numbers(rows)))
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        assert query.awaitTermination(SECONDS)

    kafka.create("again", 1)
    publish(kafka.address, "again", 0, 30)
    run()
    assert found == list(range(30))
    admin = kafka.admin()  # kept until it has answered
    admin.delete_topics(["again"])["again"].result(30)
    until(lambda: is_made(kafka, "again"))
    publish(kafka.address, "again", 100, 150)
    with pytest.raises(
        PySparkException, match="read up to offset 30, and the partition is of a topic that was made again"
    ):
        run()
    run(missing="skip")
    assert found[30:] == list(range(100, 150))


def test_a_log_that_was_truncated_and_has_grown_again_is_told_or_read_from_there(
    spark: SparkSession, kafka: KafkaBroker, tmp_path: Path
) -> None:
    """What was between where it was truncated and the offset of the checkpoint was passed over, and nothing was said."""
    found: list[int] = []

    def run(**options: str) -> None:
        frame = spark.readStream.format("isthmus_kafka").options(
            bootstrap_servers=kafka.address, topic="truncated", **options
        )
        writer = frame.load().writeStream.foreachBatch(lambda rows, _: found.extend(numbers(rows)))
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        assert query.awaitTermination(SECONDS)

    kafka.create("truncated", 1)
    publish(kafka.address, "truncated", 0, 20)
    publish(kafka.address, "truncated", 20, 30)
    run()
    assert found == list(range(30))
    kafka.stop(signal.SIGKILL)
    kafka.truncate("truncated", 20)
    kafka.start()
    publish(kafka.address, "truncated", 100, 150)
    with pytest.raises(PySparkException, match="has read up to offset 30, and the log was truncated at 20"):
        run()
    run(missing="skip")
    assert found[30:] == list(range(100, 150))
    publish(kafka.address, "truncated", 150, 160)
    run()
    assert found[80:] == list(range(150, 160))


def is_made(kafka: KafkaBroker, topic: str) -> bool:
    """A topic is deleted in the background."""
    try:
        kafka.create(topic, 1)
    except KafkaException:
        return False
    return True


def test_a_stream_is_written_from_a_stream(spark: SparkSession, kafka: KafkaBroker, tmp_path: Path) -> None:
    kafka.create("raw", 2)
    kafka.create("upper", 1)
    publish(kafka.address, "raw", 0, 200, keys=3)
    frame = (
        spark.readStream.format("isthmus_kafka")
        .options(bootstrap_servers=kafka.address, topic="raw")
        .load()
        .selectExpr("key", "concat('n', cast(value as string)) as value")
    )
    query = (
        frame.writeStream.format("isthmus_kafka")
        .options(bootstrap_servers=kafka.address, topic="upper", checkpointLocation=str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(SECONDS)
    arrived = [record for each in consumed(kafka.address, "upper", 200).values() for record in each]
    assert sorted(record.value() for record in arrived) == sorted(b"n%d" % number for number in range(200))
    assert {record.key() for record in arrived} == {b"key-0", b"key-1", b"key-2"}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"topic": "absent"}, "absent"),
        ({"topic": "source", "maxrecord": "5"}, "max_records"),
        ({}, "needs topic"),
    ],
)
def test_what_cannot_be_read_is_said(
    spark: SparkSession, kafka: KafkaBroker, options: dict[str, str], text: str
) -> None:
    with pytest.raises(PySparkException, match=text):
        spark.read.format("isthmus_kafka").options(bootstrap_servers=kafka.address, **options).load().collect()


def test_what_cannot_be_written_is_said(spark: SparkSession, kafka: KafkaBroker) -> None:
    kafka.create("narrow", 1)
    to = {"bootstrap_servers": kafka.address, "topic": "narrow"}
    rows = spark.createDataFrame([("v", 7)], "value string, partition int")
    with pytest.raises(PySparkException, match="1 partitions; column 'partition' contains 7"):
        rows.write.format("isthmus_kafka").mode("append").options(**to).save()
    with pytest.raises(PySparkException, match="no column 'partion'"):
        rows.withColumnRenamed("partition", "partion").write.format("isthmus_kafka").mode("append").options(**to).save()
    with pytest.raises(PySparkException, match="cannot be overwritten"):
        rows.write.format("isthmus_kafka").mode("overwrite").options(**to).save()
