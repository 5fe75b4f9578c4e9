"""One Spark query that carries many routes between two namespaces."""

from __future__ import annotations

import json
import secrets
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from isthmus.amqp import section
from isthmus.bench.load import connect
from isthmus.bridge.host.control.server import ControlServer
from isthmus.bridge.lease.crash_search import Plan
from isthmus.bridge.route_spec import End, RouteSpec
from isthmus.replication.spark_session import create_spark_session
from isthmus.testing.namespace import NamespaceProcess, namespace
from isthmus.transport import Management, Receiver, Sender

pytestmark = pytest.mark.spark

ROUTES = 12
MESSAGES = 200
LEASE_SECONDS = 25.0
# Nothing is measured by it: what takes so long never comes.
LONG_SECONDS = 240.0
LOST = "lost"


@pytest.fixture(name="spark", scope="module")
def _spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    folder = tmp_path_factory.mktemp("spark")
    (folder / "events").mkdir()
    shown = {
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": (folder / "events").as_uri(),
        "spark.eventLog.compress": "false",
    }
    session = create_spark_session("test", routes=1, work_directory=folder, options=shown)
    yield session
    session.stop()


def queues(*more: str) -> str:
    names = [*(f"q-{n}" for n in range(ROUTES)), *more]
    return "queues:\n" + "".join(f"  {name}: {{lock_duration: 5m}}\n" for name in names)


@pytest.fixture(name="ends", scope="module")
def _ends(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[NamespaceProcess, NamespaceProcess]]:
    folder = tmp_path_factory.mktemp("namespaces")
    with namespace(folder / "a", config=queues(LOST)) as a, namespace(folder / "b", config=queues()) as b:
        yield a, b


def connections(folder: Path, ends: tuple[NamespaceProcess, NamespaceProcess]) -> dict[str, str]:
    """References to the connection strings of both ends."""
    path = folder / "secrets"
    path.write_text("".join(f"{name}={end.connection_string}\n" for name, end in zip("ab", ends, strict=True)))
    return {name: f"file:{path}#{name}" for name in "ab"}


def route(queue: str, where: dict[str, str]) -> RouteSpec:
    target = {"connection": where["b"], "entity": queue, "origin": f"a/{queue}", "target": "b"}
    return RouteSpec(
        name=f"route/{queue}",
        source=End("servicebus", "a", {"connection": where["a"], "entity": queue}),
        target=End("servicebus", "b", target),
    )


def send(end: NamespaceProcess, queue: str, first: int, count: int) -> None:
    with connect(end.connection_string, queue) as client:
        sender = Sender(client, queue).wait_ready()
        sender.send(
            [section.encode_message(b"%d" % n, properties={"message_id": f"{n}"}) for n in range(first, first + count)]
        )
        limit = time.monotonic() + LONG_SECONDS
        while sender.settled < count and time.monotonic() < limit:
            client.wait(0.1)
        sender.raise_refusal()
        assert sender.settled == count


def receive(end: NamespaceProcess, queue: str, count: int) -> list[int]:
    """The numbers of the messages at a queue, in order; they are taken out."""
    with connect(end.connection_string, queue) as client:
        receiver = Receiver(client, queue, settled=True).wait_attached()
        receiver.grant(count + 1)
        client.flush()
        found: list[int] = []
        limit = time.monotonic() + LONG_SECONDS
        while len(found) < count and time.monotonic() < limit:
            client.wait(0.1)
            for run in receiver.take():
                found += [number(payload) for payload in run.payloads]
        return found


def number(message: bytes) -> int:
    return int(section.decode_properties(message, section.locate(message).properties)["message_id"])


def remaining(end: NamespaceProcess, queue: str) -> int:
    """How many messages a queue holds, locked ones included."""
    with connect(end.connection_string, queue) as client:
        return len(Management(client, queue).peek(0, 250))


def test_twelve_routes_cross_in_order_and_a_failing_one_delays_no_other(
    spark: SparkSession, ends: tuple[NamespaceProcess, NamespaceProcess], tmp_path: Path
) -> None:
    a, b = ends
    where = connections(tmp_path, ends)
    names = [f"q-{n}" for n in range(ROUTES)]
    for name in [*names, LOST]:
        send(a, name, 0, MESSAGES // 2)
    routes = [route(name, where).to_json() for name in [*names, LOST]]
    query = (
        spark.readStream.format("isthmus")
        .options(routes=json.dumps(routes), lease_seconds=str(LEASE_SECONDS), blocks="true")  # as `isthmus run` has it
        .load()
        .writeStream.format("isthmus")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    try:
        first = {name: receive(b, name, MESSAGES // 2) for name in names}
        for name in names:  # these come while the lease is under way
            send(a, name, MESSAGES // 2, MESSAGES // 2)
        second = {name: receive(b, name, MESSAGES // 2) for name in names}
        assert query.awaitTermination(LONG_SECONDS)
    finally:
        query.stop()
    assert query.exception() is None
    assert [first[name] + second[name] for name in names] == [list(range(MESSAGES))] * ROUTES
    assert [remaining(a, name) for name in names] == [0] * ROUTES
    assert receive(a, LOST, MESSAGES // 2) == list(range(MESSAGES // 2))


def test_the_key_of_the_control_port_is_redacted_wherever_spark_shows_options(
    spark: SparkSession, tmp_path: Path
) -> None:
    key = secrets.token_urlsafe(32)
    began = threading.Event()

    def plan_of(name: str) -> Plan:
        began.set()
        return Plan()

    server = ControlServer(key, claim_seconds=lambda claim: 0.0, plan_of=plan_of, on_death=lambda *_: None).start()
    lost = End("servicebus", "a", {"connection": "env:NOBODY_SET_THIS", "entity": "q"})
    try:
        control = server.query("keys")
        control.assign([RouteSpec(name="r", source=lost, target=lost)])
        options = {"query": "keys", "control": server.address, "control_token": key}
        rows = spark.readStream.format("isthmus").options(**options).load()
        query = rows.writeStream.format("isthmus").option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        try:
            assert began.wait(LONG_SECONDS)  # the lease had the key, unredacted
            texts = {"plan": str(rows._jdf.queryExecution().toString())}  # as explain(extended=True) prints it
            site = f"{spark.sparkContext.uiWebUrl}/api/v1/applications/{spark.sparkContext.applicationId}"
            for page in ("environment", "sql?details=true&planDescription=true", "jobs"):
                with urllib.request.urlopen(f"{site}/{page}", timeout=60) as answer:
                    texts[page] = answer.read().decode()
            control.stop("the test ends")
        finally:
            query.stop()
    finally:
        server.close()
    events = Path(spark.sparkContext.getConf().get("spark.eventLog.dir", "").removeprefix("file://"))
    files = [file for base in (events.parent, tmp_path) for file in base.rglob("*") if file.is_file()]
    assert any(file.is_relative_to(events) and file.stat().st_size for file in files)
    texts |= {str(file): file.read_text(errors="replace") for file in files}
    assert "isthmus" in texts["plan"]
    assert [where for where, text in texts.items() if key in text] == []
