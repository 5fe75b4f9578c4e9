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
from isthmus.connectors.servicebus.head import standing
from isthmus.replication.reach import Reach
from isthmus.replication.step.message import StepMessage
from isthmus.supervisor.status import read_status
from isthmus.testing.federation import FederationProcess, RunProcess
from isthmus.topology.model import Endpoint
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
    with Reach(federation.federation) as reach:
        for entity, messages in (("orders", orders), ("flights", flights)):
            with reach.open(Endpoint("ewr", entity)) as client:
                Sender(client, entity).wait_ready().send_all(messages, batch=50)


def found(federation: FederationProcess, entity: str) -> list[bytes]:
    """What stands at the target, in order."""
    rows: list[bytes] = []
    with Reach(federation.federation) as reach:
        peek = reach.peek(Endpoint("jfk", entity))
        start = 0
        while page := peek(start, 250):
            rows += page
            start = standing(page[-1]).sequence + 1
    return rows


def properties(message: bytes) -> dict[Any, Any]:
    return section.decode_map(message, section.locate(message).application_properties)


def numbers(federation: FederationProcess) -> list[int]:
    return [properties(each)["number"] for each in found(federation, "orders")]


def results(federation: FederationProcess) -> list[dict[str, Any]]:
    return [StepMessage(each).json for each in found(federation, "flights")]


def wait_for(
    condition: Callable[[], bool], run: RunProcess, told: Callable[[], object], seconds: float = 300.0
) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, (told(), run.log()[-3000:])
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
    with Reach(federation.federation) as reach, reach.open(Endpoint("ewr", "flights")) as client:
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
    places = [(each["window_start"], each["carrier"]) for each in made]
    assert len(set(places)) == len(places)
    assert places == sorted(places)
    assert {datetime.fromisoformat(start).second % 2 for start, _ in places} == {0}
    with Reach(federation.federation) as reach:
        (refused,) = reach.peek(Endpoint("ewr", "flights/$DeadLetterQueue"))(0, 10)
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
