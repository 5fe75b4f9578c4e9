"""The data source as Spark runs it, between two fake brokers."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from isthmus.amqp import section, types
from isthmus.connectors.servicebus.arrow_batch import ARROW_BATCH_SETTING
from isthmus.replication.spark_session import create_spark_session
from isthmus.testing.peer import Peer

pytestmark = pytest.mark.spark

# Nothing is measured by it: whoever waits so long waits for nothing.
LONG_SECONDS = 240.0


@pytest.fixture(name="spark", scope="module")
def _spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    session = create_spark_session("test", routes=2, work_directory=tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()


@pytest.fixture(name="brokers")
def _brokers(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Peer, Peer]]:
    with Peer("source") as source, Peer("target") as target:
        for name, peer in (("SOURCE", source), ("TARGET", target)):
            monkeypatch.setenv(name, connection_string(peer))
        yield source, target


def connection_string(peer: Peer) -> str:
    return f"Endpoint=sb://127.0.0.1:{peer.port}/;SharedAccessKeyName=k;SharedAccessKey=planted;UseDevelopmentEmulator=true"


def connection_file(folder: Path, source: Peer, target: Peer) -> str:
    """A file of secrets: workers were forked before this test's ports were known, so the environment would not do."""
    path = folder / "secrets"
    path.write_text(f"SOURCE={connection_string(source)}\nTARGET={connection_string(target)}\n")
    return f"file:{path}"


def message(number: int) -> bytes:
    return section.encode_message(
        b"body %d" % number,
        properties={"message_id": f"m{number}", "subject": "s"},
        application_properties={"n": types.Int(number), "gate": "A1"},
    )


def put(peer: Peer, first: int, count: int) -> None:
    with peer.lock:
        for number in range(first, first + count):
            peer.queues["source"].put(message(number))


def ids(peer: Peer) -> list[str]:
    with peer.lock:
        return [
            section.decode_properties(m, section.locate(m).properties)["message_id"]
            for m in peer.queues["target"].messages.values()
        ]


def read(spark: SparkSession, secrets: str, **options: str) -> DataFrame:
    return (
        spark.readStream.format("servicebus")
        .options(connection=f"{secrets}#SOURCE", entity="source", **{"settle": "sink", "idle_seconds": "1", **options})
        .load()
    )


def write(
    frame: DataFrame, secrets: str, folder: Path, *, available_now: bool = False, **options: str
) -> StreamingQuery:
    writer = (
        frame.writeStream.format("servicebus")
        .options(connection=f"{secrets}#TARGET", entity="target", **options)
        .option("checkpointLocation", str(folder / "checkpoint"))
    )
    return (writer.trigger(availableNow=True) if available_now else writer).start()


def test_messages_stream_in_order_through_leases(
    spark: SparkSession, brokers: tuple[Peer, Peer], tmp_path: Path
) -> None:
    source, target = brokers
    secrets = connection_file(tmp_path, source, target)
    put(source, 0, 500)
    query = write(read(spark, secrets, idle_seconds="15"), secrets, tmp_path, origin="ewr/source", target="jfk")
    try:
        target.wait_for(lambda: len(target.queues["target"].messages) == 500, LONG_SECONDS)
        source.wait_for(lambda: len(source.queues["source"].fates) == 500, LONG_SECONDS)
        put(source, 500, 1)
        target.wait_for(lambda: len(target.queues["target"].messages) == 501, LONG_SECONDS)
        # It came within the lease that is still under way: what has ended is the rehearsal.
        assert [progress["batchId"] for progress in query.recentProgress] == [0]
        limit = time.monotonic() + LONG_SECONDS
        while len(query.recentProgress) < 2 and time.monotonic() < limit:
            time.sleep(0.1)
        put(source, 501, 10)  # the lease before has ended by idleness: another one starts
        target.wait_for(lambda: len(target.queues["target"].messages) == 511, LONG_SECONDS)
        source.wait_for(lambda: len(source.queues["source"].fates) == 511, LONG_SECONDS)
        assert ids(target) == [f"m{n}" for n in range(511)]
        copy = target.queues["target"].messages[1]
        own = section.decode_map(copy, section.locate(copy).application_properties)
        assert own["repl-origin"] == "ewr/source"
        assert own["n"] == 0
        progress = query.lastProgress
        assert progress is not None
        assert "lease" in str(progress["sources"][0]["endOffset"])
        assert "planted" not in progress.json
    finally:
        query.stop()
    source.wait_for(lambda: not source.queues["source"].locked, LONG_SECONDS)
    assert set(source.queues["source"].fates.values()) == {"completed"}


def test_queries_that_start_together_share_what_threads_may_share(spark: SparkSession) -> None:
    manager = spark._jsparkSession.sessionState().dataSourceManager()
    variables = manager.lookupDataSource("servicebus").dataSourceCls().envVars()
    assert variables.getClass().getName() == "java.util.concurrent.ConcurrentHashMap"
    assert "PYTHONPATH" in variables


def test_available_now_moves_what_waits_and_ends(
    spark: SparkSession, brokers: tuple[Peer, Peer], tmp_path: Path
) -> None:
    source, target = brokers
    secrets = connection_file(tmp_path, source, target)
    put(source, 0, 300)
    query = write(read(spark, secrets), secrets, tmp_path, available_now=True)
    assert query.awaitTermination(int(LONG_SECONDS))
    assert ids(target) == [f"m{n}" for n in range(300)]
    assert len(source.queues["source"].fates) == 300


def test_rows_get_the_disposition_that_a_step_gave_them(
    spark: SparkSession, brokers: tuple[Peer, Peer], tmp_path: Path
) -> None:
    source, target = brokers
    secrets = connection_file(tmp_path, source, target)
    put(source, 0, 10)
    bad = F.col("sequence_number") % 5 == 0
    rows = (
        read(spark, secrets).withColumn("disposition", F.when(bad, "dead-letter")).withColumn("reason", F.lit("fifth"))
    )
    query = write(rows, secrets, tmp_path, available_now=True)
    assert query.awaitTermination(int(LONG_SECONDS))
    fates = source.queues["source"].fates
    assert {s for s, fate in fates.items() if fate == "dead-lettered: fifth"} == {5, 10}
    assert len(ids(target)) == 8


def test_a_step_that_drops_rows_is_an_error(spark: SparkSession, brokers: tuple[Peer, Peer], tmp_path: Path) -> None:
    source, target = brokers
    secrets = connection_file(tmp_path, source, target)
    put(source, 0, 10)
    rows = read(spark, secrets, steps="my.step").filter("sequence_number <> 3")
    query = write(rows, secrets, tmp_path, available_now=True)
    with pytest.raises(Exception, match=r"1 messages from sequence number 3 on did not come to the sink.*my\.step"):
        query.awaitTermination(int(LONG_SECONDS))
    source.wait_for(lambda: source.queues["source"].waiting == [3], LONG_SECONDS)


def test_a_shuffle_settles_when_spark_commits(spark: SparkSession, brokers: tuple[Peer, Peer], tmp_path: Path) -> None:
    source, target = brokers
    secrets = connection_file(tmp_path, source, target)
    put(source, 0, 50)
    rows = read(spark, secrets, settle="commit", batch_seconds="0.5", mode="decoded").repartition(2)
    query = write(rows.drop("sequence_number"), secrets, tmp_path)
    try:
        target.wait_for(lambda: len(target.queues["target"].messages) >= 50, LONG_SECONDS)
        source.wait_for(lambda: len(source.queues["source"].fates) >= 50, LONG_SECONDS)
    finally:
        query.stop()
    assert set(ids(target)) >= {f"m{n}" for n in range(50)}


def test_a_batch_read_browses_and_a_batch_write_sends(
    spark: SparkSession, brokers: tuple[Peer, Peer], tmp_path: Path
) -> None:
    source, target = brokers
    secrets = connection_file(tmp_path, source, target)
    put(source, 0, 5)
    frame = (
        spark.read.format("servicebus")
        .options(connection=f"{secrets}#SOURCE", entity="source", mode="decoded", from_sequence="2")
        .load()
    )
    rows = frame.orderBy("sequence_number").collect()
    assert [row.message_id for row in rows] == ["m1", "m2", "m3", "m4"]
    assert rows[0].application_properties["n"].asDict()["long"] == 1
    assert rows[0].application_properties["n"].type == "int"
    assert source.queues["source"].waiting == [1, 2, 3, 4, 5]
    frame.coalesce(1).write.format("servicebus").mode("append").options(
        connection=f"{secrets}#TARGET", entity="target"
    ).save()
    copy = next(iter(target.queues["target"].messages.values()))
    own = section.decode_map(copy, section.locate(copy).application_properties)
    assert own == {"n": 1, "gate": "A1"}
    assert type(own["n"]) is types.Int


def test_an_unknown_option_is_refused_with_the_nearest_name_and_sparks_own_pass(spark: SparkSession) -> None:
    reader = spark.read.format("servicebus").options(connection="env:NOWHERE", entity="source", mode="decoded")
    assert "body" in reader.load("a/path").columns
    with pytest.raises(PySparkException, match="no option 'maxrow'; write max_rows"):
        reader.option("maxRow", "5").load()


def test_a_session_that_gathers_rows_without_end_is_refused_with_what_to_set(
    spark: SparkSession, brokers: tuple[Peer, Peer], tmp_path: Path
) -> None:
    source, target = brokers
    secrets = connection_file(tmp_path, source, target)
    put(source, 0, 1)
    ours = spark.conf.get(ARROW_BATCH_SETTING)
    assert ours is not None
    try:
        spark.conf.set(ARROW_BATCH_SETTING, "64m")
        refused = write(read(spark, secrets), secrets, tmp_path / "refused")
        with pytest.raises(
            StreamingQueryException, match=f"{ARROW_BATCH_SETTING} is 64m: Spark would hold messages back"
        ):
            refused.awaitTermination(int(LONG_SECONDS))
        assert not target.queues["target"].messages
        spark.conf.set(ARROW_BATCH_SETTING, "1m")
        query = write(read(spark, secrets, idle_seconds="240"), secrets, tmp_path / "taken")
        try:
            # Within the lease, which nothing ends: a flush row has the size that this session asks for.
            target.wait_for(lambda: len(target.queues["target"].messages) == 1, LONG_SECONDS / 2)
        finally:
            query.stop()
    finally:
        spark.conf.set(ARROW_BATCH_SETTING, ours)
