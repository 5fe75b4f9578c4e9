"""Steps between two namespaces: a query of the data source with steps in between, as a run makes it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from isthmus.amqp import section
from isthmus.bench.load import connect
from isthmus.bridge.route_spec import End, RouteSpec
from isthmus.errors import InvalidArgumentError
from isthmus.replication.spark_session import create_spark_session
from isthmus.replication.step.chain.chain import Chain
from isthmus.replication.step.message.message import StepMessage
from isthmus.testing.namespace import NamespaceProcess, namespace
from isthmus.topology.step import StepDeclaration
from isthmus.transport import Receiver, Sender

pytestmark = pytest.mark.spark

QUEUES = ("checked", "framed", "quick", "refused", "sealed", "parted", "bad")
LEASE_SECONDS = 300.0
# Nothing is measured by it: what takes so long never comes.
LONG_SECONDS = 240.0
FUNCTIONS = Path(__file__).parents[2] / "fixtures" / "step"
HERE = "flight_step"


@pytest.fixture(name="spark", scope="module")
def _spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    _end_java()
    with pytest.MonkeyPatch.context() as patch:  # a module of the operator's, importable here and in the workers
        patch.syspath_prepend(FUNCTIONS)
        patch.setenv("PYTHONPATH", str(FUNCTIONS), prepend=os.pathsep)
        session = create_spark_session("test", routes=2, work_directory=tmp_path_factory.mktemp("spark"))
        yield session
        session.stop()


def _end_java() -> None:
    """Ends the Java that modules of tests before this one have started: workers have the environment that it was started with."""
    gateway = SparkContext._gateway
    if gateway is None:
        return
    SparkContext._gateway = SparkContext._jvm = None
    process = gateway.proc
    gateway.shutdown()
    process.stdin.close()
    process.wait(LONG_SECONDS)


@pytest.fixture(name="ends", scope="module")
def _ends(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[NamespaceProcess, NamespaceProcess]]:
    folder = tmp_path_factory.mktemp("namespaces")
    config = "queues:\n" + "".join(f"  {name}: {{lock_duration: 5m}}\n" for name in QUEUES)
    with namespace(folder / "a", config=config) as a, namespace(folder / "b", config=config) as b:
        yield a, b


def step(kind: str, **settings: Any) -> str:
    return StepDeclaration(kind, {"on_failure": "dead-letter", **settings}).to_text()


def start(
    spark: SparkSession,
    ends: tuple[NamespaceProcess, NamespaceProcess],
    folder: Path,
    queue: str,
    steps: Sequence[str],
    *,
    only_present: bool,
) -> StreamingQuery:
    """The query of one route with steps."""
    secrets = folder / "secrets"
    secrets.write_text("".join(f"{name}={end.connection_string}\n" for name, end in zip("ab", ends, strict=True)))
    source = {"connection": f"file:{secrets}#a", "entity": queue}
    target = {"connection": f"file:{secrets}#b", "entity": queue, "origin": f"a/{queue}", "target": "b"}
    target["trusts_provenance"] = "true"
    route = RouteSpec(
        name=f"route/{queue}",
        source=End("servicebus", "a", source),
        target=End("servicebus", "b", target),
        diverts={"b/bad": End("servicebus", "b", {**target, "entity": "bad", "trusts_provenance": "false"})},
        diverted_from=f"a/{queue}",
        steps=tuple(steps),
        only_present=only_present,
    )
    options = {"routes": json.dumps([route.to_json()]), "lease_seconds": str(LEASE_SECONDS)}
    chain = Chain(steps)
    rows = chain.apply(spark.readStream.format("isthmus").options(**options, **chain.read_options()).load())
    return (
        rows.writeStream.format("isthmus")
        .options(**chain.write_options(rows))
        .option("checkpointLocation", str(folder / f"checkpoint-{queue}"))
        .trigger(availableNow=True)
        .start()
    )


def carry(
    spark: SparkSession,
    ends: tuple[NamespaceProcess, NamespaceProcess],
    folder: Path,
    queue: str,
    steps: Sequence[str],
) -> None:
    """Carry what is in a queue through steps, and no more."""
    query = start(spark, ends, folder, queue, steps, only_present=True)
    try:
        assert query.awaitTermination(LONG_SECONDS)
    finally:
        query.stop()
    assert query.exception() is None


def send(end: NamespaceProcess, queue: str, messages: Sequence[bytes]) -> None:
    with connect(end.connection_string, queue) as client:
        sender = Sender(client, queue).wait_ready()
        sender.send(messages)
        limit = time.monotonic() + LONG_SECONDS
        while sender.settled < len(messages) and time.monotonic() < limit:
            client.wait(0.1)
        sender.raise_refusal()


def receive(end: NamespaceProcess, entity: str, count: int, seconds: float = LONG_SECONDS) -> list[StepMessage]:
    """Messages of an entity, taken out, as soon as there are so many or the time is over."""
    with connect(end.connection_string, entity) as client:
        receiver = Receiver(client, entity, settled=True).wait_attached()
        receiver.grant(count)
        client.flush()
        found: list[StepMessage] = []
        limit = time.monotonic() + seconds
        while len(found) < count and time.monotonic() < limit:
            client.wait(0.05)
            for run in receiver.take():
                found += [StepMessage(bytes(payload)) for payload in run.payloads]
        return found


def flight(number: int, **changes: Any) -> bytes:
    reported = {"carrier": "UA", "flight": number, "dest": "IAH", **changes}
    properties = {"message_id": f"{number}", "subject": "flight", "content_type": "application/json"}
    return section.encode_message(
        json.dumps({name: value for name, value in reported.items() if value is not None}).encode(),
        properties=properties,
        application_properties={"carrier": reported["carrier"], "number": number},
    )


def test_rows_are_checked_filtered_and_changed_and_failures_set_aside(
    spark: SparkSession, ends: tuple[NamespaceProcess, NamespaceProcess], tmp_path: Path
) -> None:
    a, b = ends
    schema = tmp_path / "flight.schema.json"
    schema.write_text('{"type": "object", "required": ["flight", "dest"]}')
    steps = [
        step("validate", schema=str(schema), encoding="json"),
        step("filter", where="carrier = 'UA'", on_failure="drop"),
        step("set", action="SET priority = 'high'; SET sys.Label = 'long-haul'"),
        step("python", function=f"{HERE}:fail_on_thirteen", takes="message"),
    ]
    sent = [flight(n) for n in range(30)]
    sent[5] = flight(5, dest=None)
    sent[6] = flight(6, carrier="AA")
    send(a, "checked", sent)
    carry(spark, ends, tmp_path, "checked", steps)
    found = receive(b, "checked", 26)
    wanted = [n for n in range(30) if n not in (5, 6, 13, 14)]
    assert [message.json["flight"] for message in found] == wanted
    assert {message.properties["subject"] for message in found} == {"long-haul"}
    assert {message.application_properties["priority"] for message in found} == {"high"}
    assert [message.body for message in found] == [StepMessage(sent[n]).body for n in wanted]
    aside = {
        message.application_properties["DeadLetterReason"]: message
        for message in receive(a, "checked/$DeadLetterQueue", 3, 10.0)
    }
    assert aside.keys() == {"ValidationFailed", "StepFailed", "Unwanted"}
    reported = aside["StepFailed"].application_properties["DeadLetterErrorDescription"]
    assert reported == f"step python {HERE}:fail_on_thirteen: RuntimeError: there is no flight 13"
    assert aside["StepFailed"].json["flight"] == 13


def test_what_dataframe_steps_change_in_columns_is_written_into_messages(
    spark: SparkSession, ends: tuple[NamespaceProcess, NamespaceProcess], tmp_path: Path
) -> None:
    a, b = ends
    steps = [
        step("sql", select="SELECT *, upper(subject) AS subject FROM rows"),
        step("filter", where="number <> 2", on_failure="drop"),
        step("python", function=f"{HERE}:stamp"),
        step("set", action="SET done = 1"),
    ]
    sent = [flight(n) for n in range(6)]
    send(a, "framed", sent)
    carry(spark, ends, tmp_path, "framed", steps)
    found = receive(b, "framed", 4)
    assert [message.application_properties["number"] for message in found] == [0, 1, 4, 5]
    assert [message.body for message in found] == [StepMessage(sent[n]).body + b" stamped" for n in (0, 1, 4, 5)]
    assert {message.properties["subject"] for message in found} == {"FLIGHT"}
    assert {message.application_properties["done"] for message in found} == {1}
    assert receive(a, "framed", 1, 1.0) == []


def test_columns_and_functions_divert_messages_as_they_were_received(
    spark: SparkSession, ends: tuple[NamespaceProcess, NamespaceProcess], tmp_path: Path
) -> None:
    a, b = ends
    to = {"on_failure": "divert", "divert_to": {"to": "b", "queue": "bad"}}
    steps = [
        step("sql", select="SELECT *, upper(subject) AS subject FROM rows"),
        step("filter", where="number <> 2", **to),
        step("sql", select="SELECT *, concat(subject, '!') AS subject FROM rows"),
        step("set", action="SET done = 1"),
        step("filter", where="number <> 4", **to),
    ]
    sent = [flight(n) for n in range(6)]
    send(a, "parted", sent)
    carry(spark, ends, tmp_path, "parted", steps)
    found = receive(b, "parted", 4)
    assert [message.json["flight"] for message in found] == [0, 1, 3, 5]
    assert {message.properties["subject"] for message in found} == {"FLIGHT!"}
    bad = receive(b, "bad", 2)
    assert sorted(message.json["flight"] for message in bad) == [2, 4]
    for message in bad:
        own = StepMessage(sent[message.json["flight"]])
        assert (message.body, message.properties["subject"]) == (own.body, "flight")
        reported = message.application_properties
        assert "done" not in reported
        assert (reported["repl-dead-letter-reason"], reported["repl-dead-letter-source"]) == ("Filtered", "a/parted")
    assert not receive(a, "parted/$DeadLetterQueue", 1, 1.0)
    assert not receive(a, "parted", 1, 1.0)


def test_a_message_that_comes_alone_passes_steps_without_waiting_for_others(
    spark: SparkSession, ends: tuple[NamespaceProcess, NamespaceProcess], tmp_path: Path
) -> None:
    a, b = ends
    steps = [step("sql", select="SELECT upper(subject) AS subject FROM rows"), step("set", action="SET done = 1")]
    query = start(spark, ends, tmp_path, "quick", steps, only_present=False)
    try:
        send(a, "quick", [flight(0)])
        assert len(receive(b, "quick", 1)) == 1
        took = []
        for number in range(1, 11):
            began = time.monotonic()
            send(a, "quick", [flight(number)])
            assert len(receive(b, "quick", 1)) == 1
            took.append(time.monotonic() - began)
    finally:
        query.stop()
    assert sorted(took)[5] < LEASE_SECONDS / 60, took  # what waits for other rows waits for the lease's end


@pytest.mark.parametrize(
    ("declared", "reported"),
    [
        (step("python", function=f"{HERE}:shuffle"), "Repartition"),
        (step("python", function=f"{HERE}:drop"), r"removes rows \(Filter\): set their columns disposition"),
        (step("python", function=f"{HERE}:udf"), "runs Python for its rows"),
        (step("sql", select="SELECT 1 AS other FROM rows"), "a column 'other' is not written to messages"),
        (
            step("sql", select="SELECT length(body) AS body FROM rows"),
            "column body is int; cast it to binary or string",
        ),
        (step("sql", select="SELECT subject FROM rows WHERE subject = 'a'"), r"removes rows \(Filter\)"),
        (step("python", function=f"{HERE}:nothing"), "has no function nothing"),
    ],
)
def test_what_a_lease_cannot_carry_is_refused_before_it_starts(
    spark: SparkSession, declared: str, reported: str
) -> None:
    chain = Chain([declared])
    end = End("servicebus", "a", {"connection": "env:NOBODY_SET_THIS", "entity": "q"})
    routes = json.dumps([RouteSpec(name="r", source=end, target=end).to_json()])
    rows = spark.readStream.format("isthmus").options(routes=routes, **chain.read_options()).load()
    with pytest.raises(InvalidArgumentError, match=reported):
        chain.apply(rows)
