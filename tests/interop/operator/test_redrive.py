"""`isthmus redrive` between served namespaces: dead letters of routes reach their targets, each once, whatever is killed."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from harness.fixture.set_aside import contents, numbers, reported, send, set_aside, wait_count
from isthmus.testing.federation import FederationProcess
from isthmus.topology.route import routes

TASKS = """
  flights: {pattern: all-active, topic: flights, members: [ewr, jfk], subscriptions: [audit], lock_duration: 5s}
  pay: {pattern: spillover, queue: payments, members: [ewr, jfk], deadline: 10m}
  weather:
    pattern: active-passive
    topic: weather
    primary: ewr
    secondary: jfk
    failover_within: 1h
    subscriptions: [all]
    steps:
      - set: "SET seen = 'yes'"
      - filter: "number <> 1"
      - set: "SET ratio = 10 / number"
  frames:
    pattern: active-passive
    topic: frames
    primary: ewr
    secondary: jfk
    failover_within: 1h
    subscriptions: [all]
    steps: [{sql: "SELECT * FROM rows"}]
"""
JFK = "flights/Subscriptions/isthmus.flights.jfk"
ROUNDS = 40
KILLED = 1000


@pytest.fixture(name="running", scope="module")
def _running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FederationProcess]:
    with FederationProcess(tmp_path_factory.mktemp("federation"), written=TASKS) as running:
        yield running


def test_dead_letters_reach_the_target_as_the_routes_copies(
    running: FederationProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    send(running, "ewr", "flights", range(30))
    set_aside(running, "ewr", JFK, 20, "RefusedByTarget")
    set_aside(running, "ewr", JFK, 10, "KilledItsWorker")
    file = str(running.file)

    looked = reported(capsys, file, "flights")
    there = looked["queues"][0]
    assert looked["dry_run"]
    assert there["reasons"] == {"RefusedByTarget": 20, "KilledItsWorker": 10}
    assert (there["chosen"], there["sent"]) == (20, 0)
    assert len(contents(running, "ewr", f"{JFK}/$DeadLetterQueue")) == 30

    assert reported(capsys, file, "flights", "--yes", "--count", "5")["sent"] == 5
    assert reported(capsys, file, "flights", "--yes")["sent"] == 15
    found = contents(running, "jfk", "flights/Subscriptions/audit")
    assert numbers(found) == list(range(20))
    route = next(iter(routes(running.federation, "flights")))
    for each in found:
        user = each.properties
        assert user["repl-origin"] == "ewr/flights"
        assert route.options.mark in user  # it does not come back
        assert "DeadLetterReason" not in user
    assert not contents(running, "jfk", "flights/Subscriptions/isthmus.flights.ewr")

    assert reported(capsys, file, "--yes", "--reason", "killeditsworker")["sent"] == 10
    assert not contents(running, "ewr", f"{JFK}/$DeadLetterQueue")
    result = running.verify()
    assert result.clean, result.to_dict()


def test_killed_at_any_time_it_loses_and_doubles_nothing(
    running: FederationProcess, long_count: Callable[[int], int]
) -> None:
    before = len(contents(running, "jfk", "flights/Subscriptions/audit"))
    send(running, "ewr", "flights", range(1000, 1000 + KILLED))
    set_aside(running, "ewr", JFK, KILLED, "MaxDeliveryCountExceeded")
    command = [sys.executable, "-c", "from isthmus.cli.app import main; main()", "redrive", str(running.file)]
    command += ["flights", "--yes", "--json"]
    choose = random.Random(11)
    arrived = before
    rounds = long_count(ROUNDS)
    for _ in range(rounds):
        goal = arrived + choose.randrange(1, KILLED // rounds)
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        limit = time.monotonic() + 120
        while process.poll() is None and arrived < goal:
            assert time.monotonic() < limit
            arrived = len(contents(running, "jfk", "flights/Subscriptions/audit"))
        process.kill()
        process.wait()
    limit = time.monotonic() + 180  # locks of killed processes last for a while
    while contents(running, "ewr", f"{JFK}/$DeadLetterQueue"):
        assert time.monotonic() < limit
        subprocess.run(command, stdout=subprocess.DEVNULL, check=False, timeout=120)
    found = Counter(numbers(contents(running, "jfk", "flights/Subscriptions/audit"))[before:])
    assert found == Counter(range(1000, 1000 + KILLED))
    # Order is not kept: what killed processes had locked comes after the others. They are known as sent later.
    result = running.verify()
    assert (result.total("arrived"), result.clean) == (before + KILLED, True), result.to_dict()


def test_parked_messages_are_tried_once_more_where_they_failed(
    running: FederationProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(running.file)
    send(running, "ewr", "payments", range(4), ttl_ms=3_000_000)
    set_aside(running, "ewr", "payments", 4, "CardDeclined")
    wait_count(running, "ewr", "payments-parked", 4)
    assert reported(capsys, file, "pay", "--parked")["chosen"] == 4
    assert reported(capsys, file, "pay", "--parked", "--yes", "--count", "3")["sent"] == 3
    found = contents(running, "ewr", "payments")
    assert numbers(found) == [0, 1, 2]
    user = found[0].properties
    assert (user["isthmus-pay-spilled"], user["repl-dead-letter-reason"]) == (1, "CardDeclined")
    # Fails again: it is parked again, and not tried at the other member.
    set_aside(running, "ewr", "payments", 3, "MaxDeliveryCountExceeded")
    wait_count(running, "ewr", "payments-parked", 4)
    assert not contents(running, "ewr", "isthmus.pay/Subscriptions/isthmus.pay.jfk")
    assert reported(capsys, file, "pay", "--parked", "--yes")["sent"] == 4
    assert sorted(numbers(contents(running, "ewr", "payments"))) == [0, 1, 2, 3]


def test_the_steps_of_the_route_are_applied(running: FederationProcess, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(running.file)
    own = "weather/Subscriptions/isthmus.weather.jfk"
    send(running, "ewr", "weather", range(6))
    set_aside(running, "ewr", own, 6, "StepFailed")
    (row,) = reported(capsys, file, "weather", "--yes", code=1)["queues"]
    assert (row["sent"], row["dropped"], row["refused"], row["left"]) == (4, 1, 1, 0)
    assert row["first_refusal"].startswith("StepFailed: step set")
    found = contents(running, "jfk", "weather/Subscriptions/all")
    assert numbers(found) == [2, 3, 4, 5]
    assert {each.properties["seen"] for each in found} == {"yes"}
    assert numbers(contents(running, "ewr", f"{own}/$DeadLetterQueue")) == [0]


def test_what_is_over_and_what_only_a_run_can_carry_stays(
    running: FederationProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(running.file)
    send(running, "ewr", "frames", range(2))
    set_aside(running, "ewr", "frames/Subscriptions/isthmus.frames.jfk", 2, "RefusedByTarget")
    (row,) = reported(capsys, file, "frames", "--yes", code=1)["queues"]
    assert (row["chosen"], row["sent"], "step sql" in row["error"]) == (2, 0, True)

    send(running, "jfk", "flights", range(7, 8), ttl_ms=1500)
    back = "flights/Subscriptions/isthmus.flights.ewr"
    set_aside(running, "jfk", back, 1, "RefusedByTarget")
    limit = time.monotonic() + 60
    while reported(capsys, file, "flights")["queues"][1]["expired"] != 1:
        assert time.monotonic() < limit
        time.sleep(0.2)
    assert reported(capsys, file, "flights", "--yes")["sent"] == 0
    assert reported(capsys, file, "flights", "--yes", "--expired")["sent"] == 1
    (copy,) = [
        each for each in contents(running, "ewr", "flights/Subscriptions/audit") if each.properties.get("repl-origin")
    ]
    assert copy.properties["number"] == 7


def test_a_target_that_is_unavailable_leaves_all_where_it_is(
    running: FederationProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last test: it ends a namespace."""
    send(running, "ewr", "flights", range(3))
    set_aside(running, "ewr", JFK, 3, "RefusedByTarget")
    running.namespaces["jfk"].kill()
    found = reported(capsys, str(running.file), "flights", "--yes", code=1)
    there, back = found["queues"]
    assert (there["chosen"], there["sent"], there["left"]) == (3, 0, 3)
    assert "jfk" in there["error"]
    assert back["error"]
    assert len(contents(running, "ewr", f"{JFK}/$DeadLetterQueue")) == 3
