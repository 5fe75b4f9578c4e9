"""The steps `deduplicate` and `aggregate`: what arrives is right, once, whatever is killed.

`make test` kills the driver once and a worker once, `make soak` each of them ten times.
"""

from __future__ import annotations

import json
import random
import secrets
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
import pytest

from isthmus.amqp import section
from isthmus.connectors.servicebus.head import peeked_message
from isthmus.connectors.spool.block import Record
from isthmus.connectors.spool.reader import SpoolReader
from isthmus.connectors.spool.writer import SpoolWriter
from isthmus.replication.namespace_clients import NamespaceClients
from isthmus.replication.shuffle.query import ShuffleQuery, ShuffleSettings
from isthmus.replication.spark_session import create_spark_session
from isthmus.replication.step.message.message import StepMessage
from isthmus.supervisor.status import read_status
from isthmus.testing.federation import FederationProcess, RunProcess
from isthmus.topology.model import Endpoint
from isthmus.topology.step import StepDeclaration
from isthmus.transport import Sender

pytestmark = pytest.mark.spark

TASKS = """\
  once: {pattern: move, source: ewr, queue: orders, target: jfk, lock_duration: 5s, duplicates: origin,
    steps: [{deduplicate: {window: 1h, interval: 200ms}}, {set: "SET seen = 1"}]}
  sums: {pattern: move, source: ewr, queue: flights, target: jfk, lock_duration: 5s, duplicates: origin,
    steps: [{aggregate: {window: 2s, wait: 1s, by: [carrier], fields: {flights: count, delay: sum(delay)}, interval: 200ms}}]}
"""
RUN = ("--json", "--retry-first", "1", "--retry-limit", "5", "--lease", "20")
MESSAGES = 400
ROUNDS = 10
CARRIERS = ("UA", "AA", "DL")


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[FederationProcess]:
    with FederationProcess(tmp_path, ("ewr", "jfk"), written=TASKS) as opened:
        yield opened


@pytest.fixture
def chance() -> random.Random:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    return random.Random(seed)


def publish(federation: FederationProcess, first: int, stop: int) -> None:
    """Each order twice, the second time a little later; and flights, one of them without a carrier."""
    orders = [
        section.encode_message(
            b"order", properties={"message_id": f"m-{number}"}, application_properties={"number": number, "copy": copy}
        )
        for at in range(first, stop, 50)
        for copy in (1, 2)
        for number in range(at, min(at + 50, stop))
    ]
    flights = [
        section.encode_message(json.dumps({"carrier": CARRIERS[number % 3], "delay": number}).encode())
        for number in range(first, stop)
    ]
    with NamespaceClients(federation.federation) as clients:
        for entity, messages in (("orders", orders), ("flights", flights)):
            with clients.open(Endpoint("ewr", entity)) as client:
                Sender(client, entity).wait_ready().send_all(messages, batch=50)


def found(federation: FederationProcess, entity: str) -> list[bytes]:
    """What is at the target, in order."""
    rows: list[bytes] = []
    with NamespaceClients(federation.federation) as clients:
        peek = clients.peek(Endpoint("jfk", entity))
        start = 0
        while page := peek(start, 250):
            rows += page
            start = peeked_message(page[-1]).sequence + 1
    return rows


def properties(message: bytes) -> dict[Any, Any]:
    return section.decode_map(message, section.locate(message).application_properties)


def numbers(federation: FederationProcess) -> list[int]:
    return [properties(each)["number"] for each in found(federation, "orders")]


def results(federation: FederationProcess) -> list[dict[str, Any]]:
    return [StepMessage(each).json for each in found(federation, "flights")]


def wait_for(
    condition: Callable[[], bool], run: RunProcess, reported: Callable[[], object], seconds: float = 300.0
) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, (reported(), run.log()[-3000:])
        time.sleep(0.5)


def wait_arrived(federation: FederationProcess, run: RunProcess, count: int) -> None:
    wait_for(lambda: len(numbers(federation)) >= count, run, lambda: len(numbers(federation)))


def test_each_message_passes_once_and_counts_once_whatever_is_killed(
    federation: FederationProcess,
    chance: random.Random,
    long_count: Callable[[int], int],
    counted: Callable[[str, str], None],
) -> None:
    rounds = long_count(ROUNDS)
    with NamespaceClients(federation.federation) as clients, clients.open(Endpoint("ewr", "flights")) as client:
        Sender(client, "flights").wait_ready().send_all([section.encode_message(b'{"delay": 1}')], batch=1)
    run = federation.run(*RUN)
    published = 0
    for at in range(2 * rounds):
        publish(federation, published, published + MESSAGES)
        published += MESSAGES
        if not at:
            wait_for(lambda: bool(numbers(federation)), run, lambda: "nothing has arrived")
        time.sleep(chance.uniform(0.0, 3.0))
        if at % 2:
            kill_a_worker(run, chance)
        else:
            run = kill_and_start_again(federation, run)
        publish(federation, published, published + MESSAGES)
        published += MESSAGES
        wait_arrived(federation, run, published)
    wait_for(
        lambda: sum(each["flights"] for each in results(federation)) >= published, run, lambda: results(federation)
    )
    wait_for(lambda: spool(run, "once").get("suppressed") == published, run, lambda: spool(run, "once"))
    assert run.end() == 0, run.log()[-3000:]
    assert numbers(federation) == list(range(published))
    copies = found(federation, "orders")
    assert {properties(each)["copy"] for each in copies} == {1}
    assert {properties(each)["seen"] for each in copies} == {1}
    assert {properties(each)["repl-origin"] for each in copies} == {"ewr/orders"}
    made = results(federation)
    assert sum(each["flights"] for each in made) == published
    assert sum(each["delay"] for each in made) == sum(range(published))
    windows = [(each["window_start"], each["carrier"]) for each in made]
    assert len(set(windows)) == len(windows)
    assert windows == sorted(windows)
    assert {datetime.fromisoformat(start).second % 2 for start, _ in windows} == {0}
    with NamespaceClients(federation.federation) as clients:
        (refused,) = clients.peek(Endpoint("ewr", "flights/$DeadLetterQueue"))(0, 10)
    assert "carrier" in str(properties(refused)["DeadLetterErrorDescription"])
    counted(f"{2 * rounds} kills of driver and worker", f"{published} messages, each once through each step")


def spool(run: RunProcess, task: str) -> dict[str, Any]:
    status = read_status(run.state) or {"routes": []}
    return next((each["spool"] for each in status["routes"] if each["task"] == task and each["spool"]), {})


def kill_and_start_again(federation: FederationProcess, run: RunProcess) -> RunProcess:
    below = psutil.Process(run.pid).children(recursive=True)
    run.end(signal.SIGKILL)
    psutil.wait_procs(below, timeout=30)
    return federation.run(*RUN)


def kill_a_worker(run: RunProcess, chance: random.Random) -> None:
    limit = time.monotonic() + 60
    while time.monotonic() < limit:
        if workers := run.workers():
            with suppress(psutil.NoSuchProcess):  # one may end as soon as it was seen
                psutil.Process(chance.choice(workers)).kill()
                return
        time.sleep(0.01)
    raise AssertionError("there was no worker to kill")


@pytest.mark.soak
def test_messages_that_come_late_count_after_a_start_with_a_longer_wait(tmp_path: Path) -> None:
    """Spark keeps the watermark that it has reached with the shorter one, and drops what is not later."""
    began_ms = round(time.time() * 1000) + 60_000  # so that no window closes because nothing comes
    incoming, outgoing = tmp_path / "in", tmp_path / "out"

    def come(*seconds: int) -> None:
        writer = SpoolWriter(incoming).open()
        for each in seconds:
            message = section.encode_message(b"{}")
            writer.append([Record("ewr/q id", -1, began_ms + each * 1000, message)])
        writer.sync()
        writer.close()

    def counted() -> int:
        reader = SpoolReader(outgoing)
        parts = reader.ranges(reader.first(), reader.last(), 1 << 40) if outgoing.exists() else []
        records = [record for part in parts for _, found in reader.blocks(part) for record in found if record.key]
        return sum(StepMessage(record.message).json["n"] for record in records)

    def started(wait_ms: int) -> ShuffleQuery:
        step = StepDeclaration(
            "aggregate", {"window": 2000, "wait": wait_ms, "interval": 200, "by": [], "fields": {"n": "count"}}
        )
        settings = ShuffleSettings(
            task="t",
            step=step.to_text(),
            incoming=incoming,
            outgoing=outgoing,
            source="ewr/q/t",
            checkpoint=str(tmp_path / "checkpoint"),
        )
        return ShuffleQuery(session, settings).start()

    def wait(query: ShuffleQuery, condition: Callable[[], bool]) -> None:
        limit = time.monotonic() + 120
        while not condition():
            assert query.is_active(), query.failure()
            assert time.monotonic() < limit, counted()
            time.sleep(0.1)

    come(*range(20))
    session = create_spark_session("test", routes=1, work_directory=tmp_path / "spark")
    try:
        query = started(1000)
        wait(query, lambda: query.has_all() and counted() >= 16)
        query.stop()
        query = started(30_000)
        come(*range(5, 15))
        wait(query, query.has_all)
        come(100, 100)
        wait(query, lambda: counted() >= 30)
        assert counted() == 30
        query.stop()
    finally:
        session.stop()
