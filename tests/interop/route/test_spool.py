"""A lease into a spool at a real namespace: nothing is lost and nothing appears twice, though the process that carries it is killed.

The process is killed with -9 at random moments, and, where a settlement is delayed, between the sync and the settlement. Each
message that comes again is recognised. `make soak` kills twenty times.
"""

from __future__ import annotations

import json
import random
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from harness.fixture.archive_filling import move
from isthmus.amqp import section, types
from isthmus.bridge.route_spec import End, RouteSpec
from isthmus.connectors.ledger.connector import with_ledger
from isthmus.connectors.servicebus.connect import endpoint_of_string, open_client
from isthmus.connectors.servicebus.connection_string import ConnectionString
from isthmus.connectors.spool.reader import SpoolReader
from isthmus.replication.ledger.table import collect
from isthmus.testing.namespace import NamespaceProcess
from isthmus.transport import Sender

ROUNDS = 20
MESSAGES = 500
LIMIT_SECONDS = 120.0
CARRY = """
import json, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from harness.bridge.hosted_lease import carried
from isthmus.bridge.route_spec import RouteSpec
if sys.argv[3] == "unsettled":
    from isthmus.connectors.servicebus.port.source import ServiceBusSource
    ServiceBusSource.settle = lambda _, first, last, *__: print(last - first + 1, flush=True)
folder = Path(sys.argv[4])
folder.mkdir()
with carried(folder, [RouteSpec.from_json(json.loads(sys.argv[1]))]):
    print("carrying", flush=True)
    while True:
        time.sleep(1)
"""


@pytest.fixture
def namespace(tmp_path: Path) -> Iterator[NamespaceProcess]:
    config = tmp_path / "config.yaml"
    config.write_text(
        "limits: {min_lock_duration: 1s}\nqueues: {orders: {lock_duration: 2s, max_delivery_count: 1000}}\n"
    )
    made = NamespaceProcess(tmp_path / "namespace", config=config)
    made.start()
    yield made
    made.kill()


@pytest.fixture
def route(namespace: NamespaceProcess, tmp_path: Path) -> RouteSpec:
    file = tmp_path / "ewr.json"
    file.touch(mode=0o600)
    file.write_text(json.dumps({"connection": namespace.connection_string}))
    source = {
        "connection": f"file:{file}#connection",
        "ca_file": str(namespace.ca_file),
        "entity": "orders",
        "lock_seconds": "2",
    }
    target = End("spool", "table:", {"path": str(tmp_path / "spool"), "source": "ewr/orders", "segment_bytes": "65536"})
    return RouteSpec(
        name="t.ewr.archive",
        source=End("servicebus", "ewr", source),
        target=with_ledger(target, "t.ewr.archive", tmp_path / "ledger"),
    )


class Carrier:
    """Processes that carry the route, one after another."""

    def __init__(self, route: RouteSpec, folder: Path) -> None:
        self._route = route
        self._folder = folder
        self._process: subprocess.Popen[str] | None = None
        self._count = 0

    def start(self, how: str = "settled") -> None:
        self._count += 1
        tests = Path(__file__).parents[2]
        arguments = [json.dumps(self._route.to_json()), str(tests), how, str(self._folder / f"carry{self._count}")]
        self._process = subprocess.Popen([sys.executable, "-c", CARRY, *arguments], stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "carrying\n"

    def wait_noted(self, count: int) -> None:
        """Waits until so many messages would be settled, were they not left unsettled: the account has them by then."""
        assert self._process is not None
        assert self._process.stdout is not None
        while count > 0:
            count -= int(self._process.stdout.readline())

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.communicate()
            self._process = None


@pytest.fixture
def carrier(route: RouteSpec, tmp_path: Path) -> Iterator[Carrier]:
    made = Carrier(route, tmp_path)
    yield made
    made.kill()


def publish(namespace: NamespaceProcess, first: int, stop: int) -> None:
    parsed = ConnectionString.parse(namespace.connection_string)
    messages = [
        section.encode_message(b"x" * 200, application_properties={"number": types.Long(number)})
        for number in range(first, stop)
    ]
    with open_client(endpoint_of_string(parsed, str(namespace.ca_file)), "orders", "test", 30.0) as client:
        Sender(client, "orders").wait_ready().send_all(messages, batch=100)


def spooled(folder: Path) -> list[int]:
    reader = SpoolReader(folder / "spool")
    return [
        section.decode_map(record.message, section.locate(record.message).application_properties)["number"]
        for part in reader.ranges(reader.first(), reader.last(), 1 << 40)
        for _, records in reader.blocks(part)
        for record in records
    ]


def wait_for(count: int, folder: Path) -> None:
    limit = time.monotonic() + LIMIT_SECONDS
    while len(spooled(folder)) < count:
        assert time.monotonic() < limit, len(spooled(folder))
        time.sleep(0.1)


def test_each_message_is_in_the_spool_once_whatever_is_killed(
    namespace: NamespaceProcess, carrier: Carrier, tmp_path: Path, long_count: Callable[[int], int]
) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    published = 0
    carrier.start("unsettled")  # nothing is settled: all of it comes again to the next process
    publish(namespace, 1, MESSAGES + 1)
    published += MESSAGES
    carrier.wait_noted(published)  # a message is in the spool first, and in the account then
    carrier.kill()
    for _ in range(long_count(ROUNDS)):
        carrier.start()
        publish(namespace, published + 1, published + MESSAGES + 1)
        published += MESSAGES
        time.sleep(chance.uniform(0.0, 1.0))
        carrier.kill()
    carrier.start()
    publish(namespace, published + 1, published + 2)  # in order, so that all before it has come again when it comes
    published += 1
    wait_for(published, tmp_path)
    carrier.kill()
    assert spooled(tmp_path) == list(range(1, published + 1))
    assert move(tmp_path / "spool", tmp_path / "lake") == published
    assert move(tmp_path / "spool", tmp_path / "lake") == 0
    # The account has a row for each message at least; what came again was acknowledged again.
    collect(tmp_path / "ledger", bodies=False)
    files = (tmp_path / "ledger").glob("date=*/*.parquet")
    noted = [row["sequence_number"] for file in files for row in pq.ParquetFile(file).read().to_pylist()]
    assert set(noted) >= set(range(1, published))
    assert min(map(noted.count, range(1, MESSAGES + 1))) >= 2  # what was never settled came again
