"""The data source as Spark runs it, between two fake brokers."""

import pickle
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from isthmus.amqp import section, types
from isthmus.replication.spark.data_source_lookup import DataSourceLookup
from isthmus.replication.spark_session import create_spark_session
from isthmus.testing.peer import Peer

pytestmark = pytest.mark.spark

# Nothing is measured by it: what takes so long never comes.
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
        .options(
            connection=f"{secrets}#SOURCE", entity="source", **{"idle_seconds": "1", "batch_seconds": "0.5", **options}
        )
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


def test_what_the_driver_found_is_what_spark_finds_i1(spark: SparkSession) -> None:
    """`isthmus.replication.spark.data_source_lookup`."""
    machine = spark._jvm
    assert machine is not None
    packages = machine.org.apache.spark.sql.execution.datasources
    manager = getattr(getattr(packages, "DataSourceManager$"), "MODULE$")
    # As in a virtual machine that has just started: another session of this one may have been reported before.
    getattr(manager, "dataSourceBuilders_$eq")(getattr(getattr(machine.scala, "None$"), "MODULE$"))
    assert DataSourceLookup(sys.executable).pass_on(spark)
    reported = manager.dataSourceBuilders().get()
    runner = getattr(getattr(packages.v2.python, "UserDefinedPythonDataSource$"), "MODULE$")
    found = runner.lookupAllDataSourcesInPython()
    pickles = {name.lower(): bytes(pickled) for name, pickled in zip(found.names(), found.dataSources(), strict=True)}
    assert set(pickles) >= {"isthmus", "isthmus_kafka", "isthmus_spool", "servicebus"}
    assert reported.size() == len(pickles)
    for name, pickled in pickles.items():
        command = reported.apply(name).dataSourceCls().command().mkString(",").split(",")
        assert pickle.loads(bytes(int(each) & 0xFF for each in command)) is pickle.loads(pickled)


def test_messages_stream_in_order_through_batches(
    spark: SparkSession, brokers: tuple[Peer, Peer], tmp_path: Path
) -> None:
    source, target = brokers
    secrets = connection_file(tmp_path, source, target)
    put(source, 0, 500)
    query = write(read(spark, secrets), secrets, tmp_path, origin="ewr/source", target="jfk")
    try:
        target.wait_for(lambda: len(target.queues["target"].messages) == 500, LONG_SECONDS)
        put(source, 500, 11)
        target.wait_for(lambda: len(target.queues["target"].messages) == 511, LONG_SECONDS)
        source.wait_for(lambda: len(source.queues["source"].fates) == 511, LONG_SECONDS)
        assert ids(target) == [f"m{n}" for n in range(511)]
        copy = target.queues["target"].messages[1]
        own = section.decode_map(copy, section.locate(copy).application_properties)
        assert own["repl-origin"] == "ewr/source"
        assert own["n"] == 0
        progress = query.lastProgress
        assert progress is not None
        assert "batch" in str(progress["sources"][0]["endOffset"])
        assert "planted" not in progress.json
    finally:
        query.stop()
    assert set(source.queues["source"].fates.values()) == {"completed"}


@pytest.mark.parametrize("data_source", ["servicebus", "isthmus", "isthmus_kafka", "isthmus_spool"])
def test_queries_that_start_together_share_what_threads_may_share(spark: SparkSession, data_source: str) -> None:
    manager = spark._jsparkSession.sessionState().dataSourceManager()
    variables = manager.lookupDataSource(data_source).dataSourceCls().envVars()
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
    common = {"source_connection": f"{secrets}#SOURCE", "source_entity": "source"}
    query = write(rows, secrets, tmp_path, available_now=True, **common)
    assert query.awaitTermination(int(LONG_SECONDS))
    fates = source.queues["source"].fates
    assert {s for s, fate in fates.items() if fate == "dead-lettered: fifth"} == {5, 10}
    assert len(ids(target)) == 8


def test_a_shuffle_settles_when_spark_commits(spark: SparkSession, brokers: tuple[Peer, Peer], tmp_path: Path) -> None:
    source, target = brokers
    secrets = connection_file(tmp_path, source, target)
    put(source, 0, 50)
    rows = read(spark, secrets, mode="decoded").repartition(2)
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
