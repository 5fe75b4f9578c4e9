"""A queue and a topic are kept in tables, each message once, whatever is killed.

`make soak` kills the driver and a worker, each twenty times; `make test` kills what fills a spool (tests/interop/route/test_spool.py). A round publishes, kills at a random moment at
which messages are under way, and continues. At the end the tables have every message that was acknowledged, once, in the order of the source.
"""

from __future__ import annotations

import json
import random
import secrets
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from isthmus.amqp import section, types
from isthmus.cli.app import create_app
from isthmus.connectors.spool.row import restore
from isthmus.replication.namespace_clients import NamespaceClients
from isthmus.testing.federation import FederationProcess, RunProcess
from isthmus.topology.model import Endpoint
from isthmus.transport import Sender

pytestmark = pytest.mark.spark

TASKS = """\
  kept: {pattern: archive, source: ewr, queue: orders, table: lake/orders, batch_interval: 1s, lock_duration: 5s}
  copied: {pattern: archive, source: ewr, topic: flights, table: lake/flights, batch_interval: 1s, lock_duration: 5s, audit: 1d,
    ledger: {path: lake/ledger, bodies: true}}
"""
ENTITIES = ("orders", "flights")
ROUNDS = 20
MESSAGES = 1000
RUN = ("--json", "--retry-first", "1", "--retry-limit", "5", "--lease", "20")
PROPERTIES = {
    "number": types.Long(0),
    "price": types.Float(1.5),
    "flag": True,
    "when": types.Timestamp(1_700_000_000_123),
    "who": uuid.UUID(int=7),
    "raw": b"\0\1",
    "small": types.UByte(3),
    "none": None,
}


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[FederationProcess]:
    with FederationProcess(tmp_path, ("ewr",), written=TASKS) as opened:
        yield opened


@pytest.fixture
def chance() -> random.Random:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    return random.Random(seed)


def messages(first: int, stop: int) -> list[bytes]:
    return [
        section.encode_message(
            b"body %d" % number,
            properties={"message_id": f"m-{number}", "group_id": f"s{number % 3}", "subject": "x", "user_id": b"me"},
            annotations={"x-opt-partition-key": f"s{number % 3}", "x-own": 5},
            application_properties=PROPERTIES | {"number": types.Long(number)},
        )
        for number in range(first, stop)
    ]


def publish(federation: FederationProcess, first: int, stop: int) -> None:
    for entity in ENTITIES:
        with NamespaceClients(federation.federation) as clients, clients.open(Endpoint("ewr", entity)) as client:
            Sender(client, entity).wait_ready().send_all(messages(first, stop), batch=100)


def rows(federation: FederationProcess, entity: str) -> list[dict[str, Any]]:
    """What readers find, in the order of the source."""
    found: list[dict[str, Any]] = []
    for file in sorted((federation.folder / "lake" / entity).glob("date=*/hour=*/*.parquet")):
        with suppress(FileNotFoundError):
            found += pq.ParquetFile(file).read().to_pylist()
    return sorted(found, key=lambda row: row["spool_number"])


def numbers(found: list[dict[str, Any]]) -> list[int]:
    return [dict(row["application_properties"])["number"]["long"] for row in found]


def wait_archived(federation: FederationProcess, count: int, seconds: float = 240.0) -> None:
    limit = time.monotonic() + seconds
    while any(len(rows(federation, entity)) < count for entity in ENTITIES):
        assert time.monotonic() < limit, {entity: len(rows(federation, entity)) for entity in ENTITIES}
        time.sleep(0.5)


def check(federation: FederationProcess, count: int) -> None:
    for entity in ENTITIES:
        assert numbers(rows(federation, entity)) == list(range(1, count + 1))
        own = federation.folder / "lake" / entity / "_isthmus"
        assert not (own / "spool" / "quarantine").exists()


@pytest.mark.soak  # three starts of Spark; the spool under kills: tests/interop/route/test_spool.py
def test_each_message_is_in_the_table_once_whatever_is_killed(
    federation: FederationProcess,
    chance: random.Random,
    long_count: Callable[[int], int],
    counted: Callable[[str, str], None],
) -> None:
    rounds = long_count(ROUNDS)
    run = federation.run(*RUN)
    run.wait_phase(("waiting", "moving"))
    published = 0
    for at in range(2 * rounds):
        publish(federation, published + 1, published + MESSAGES + 1)
        published += MESSAGES
        time.sleep(chance.uniform(0.0, 3.0))
        if at % 2:
            kill_a_worker(run, chance)
        else:
            run = kill_and_start_again(federation, run)
        publish(federation, published + 1, published + MESSAGES + 1)
        published += MESSAGES
        wait_archived(federation, published)
        check(federation, published)
    assert run.end() == 0
    check(federation, published)
    row = rows(federation, "orders")[0]
    assert row["source"] == "ewr/orders"
    assert row["sequence_number"] == 1
    assert row["message_id"] == "m-1"
    assert row["session_id"] == row["partition_key"] == "s1"
    assert row["enqueued_time"] is not None
    again = restore(row)
    assert section.decode_properties(again, section.locate(again).properties)["user_id"] == b"me"
    kept = section.decode_map(again, section.locate(again).application_properties)
    assert {name: (type(value), value) for name, value in kept.items()} == {
        name: (type(value), value) for name, value in (PROPERTIES | {"number": types.Long(1)}).items()
    }
    counted(f"{2 * rounds} kills of driver and worker", f"{published} messages in each table, each once")


def test_a_run_with_an_end_archives_all_and_it_can_be_proved_and_sent_again(federation: FederationProcess) -> None:
    publish(federation, 1, 301)
    run = federation.run("--available-now", "--json", "--retry-first", "1")
    assert run.wait(240) == 0, run.log()[-3000:]
    check(federation, 300)
    for task in ("kept", "copied"):
        result = federation.verify(task)
        assert result.clean, result.to_dict()
        assert result.total("arrived") == 300
    files = sorted((federation.folder / "lake" / "ledger").glob("date=*/*.parquet"))
    ledger = [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]
    assert sorted(row["sequence_number"] for row in ledger) == list(range(1, 301))
    assert {(row["route"], row["outcome"]) for row in ledger} == {("copied.ewr.archive", "moved")}
    command = [str(federation.file), "copied", "ewr/orders", "--json", "--session", "s1", "--where", "number > 200"]
    assert CliRunner().invoke(create_app("replay"), ["replay", *command]).exit_code == 0
    reported = CliRunner().invoke(create_app("replay"), ["replay", *command, "--yes", "--name", "again"])
    assert reported.exit_code == 0, reported.output
    assert json.loads(reported.output.splitlines()[-1])["sent"] == 33
    run = federation.run("--available-now", "--json", "--retry-first", "1")
    assert run.wait(240) == 0, run.log()[-3000:]
    again = rows(federation, "orders")[300:]
    assert numbers(again) == [number for number in range(201, 301) if number % 3 == 1]
    assert {dict(row["application_properties"])["isthmus-replay"]["string"].split()[0] for row in again} == {"again"}
    lost = min((federation.folder / "lake" / "flights").glob("date=*/hour=*/*.parquet"))
    lost.unlink()
    assert federation.verify("copied").total("lost") > 0


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
