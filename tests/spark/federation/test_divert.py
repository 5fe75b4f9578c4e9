"""`on_failure: divert` between real namespaces: what fails is at the divert queue as it was sent, once, whatever is killed."""

from __future__ import annotations

import json
import random
import secrets
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from isthmus.amqp import section
from isthmus.cli.app import main
from isthmus.connectors.servicebus.head import peeked_message
from isthmus.errors import IsthmusError
from isthmus.message.name import WHY_DESCRIPTION, WHY_REASON, WHY_SOURCE
from isthmus.replication.namespace_clients import NamespaceClients
from isthmus.replication.step.message.message import StepMessage
from isthmus.replication.verification.reconciliation.count import Verdict
from isthmus.supervisor.status import read_status
from isthmus.testing.federation import FederationProcess, RunProcess
from isthmus.topology.model import Endpoint
from isthmus.transport import Sender

pytestmark = pytest.mark.spark

TASKS = """\
  flights:
    pattern: copy
    source: ewr
    topic: flights
    target: jfk
    audit: 1d
    duplicates: origin
    lock_duration: 5s
    steps:
      - set: "SET seen = 1"
      - validate: {schema: flight.schema.json, on_failure: divert, divert_to: {to: ops, queue: invalid}}
      - set: "SET checked = 1"
"""
SPOOLED = """\
  orders:
    pattern: move
    source: ewr
    queue: orders
    target: jfk
    duplicates: origin
    lock_duration: 5s
    steps:
      - validate: {schema: flight.schema.json, on_failure: divert, divert_to: {to: ewr, queue: before}}
      - deduplicate: {window: 1h, interval: 200ms}
      - filter: {where: "number > 9", on_failure: divert, divert_to: {to: jfk, queue: behind}}
"""
RUN = ("--json", "--retry-first", "1", "--retry-limit", "3", "--lease", "20")
SOURCE = "flights/Subscriptions/isthmus.flights.jfk"
MESSAGES = 2000
# Every so many-th has no number of a flight.
FAILS = 7


def opened(folder: Path, written: str) -> FederationProcess:
    (folder / "flight.schema.json").write_text('{"type": "object", "required": ["flight"]}')
    return FederationProcess(folder, ("ewr", "jfk", "ops"), written=written)


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[FederationProcess]:
    with opened(tmp_path, TASKS) as found:
        yield found


def is_bad(number: int) -> bool:
    return number % FAILS == 0


def sent(number: int) -> bytes:
    body = {"seat": number} if is_bad(number) else {"flight": number}
    return section.encode_message(
        json.dumps(body).encode(),
        properties={"message_id": f"m-{number}", "subject": "flight", "correlation_id": f"c-{number}"},
        application_properties={"number": number, "carrier": "UA"},
    )


def publish(federation: FederationProcess, numbers: range, entity: str = "flights", pause_seconds: float = 0.0) -> None:
    with NamespaceClients(federation.federation) as clients, clients.open(Endpoint("ewr", entity)) as client:
        sender = Sender(client, entity).wait_ready()
        for start in range(0, len(numbers), 100):
            sender.send_all([sent(number) for number in numbers[start : start + 100]], batch=100)
            time.sleep(pause_seconds)


def found(federation: FederationProcess, alias: str, entity: str) -> list[StepMessage]:
    """What is there, in order."""
    rows: list[bytes] = []
    with NamespaceClients(federation.federation) as clients:
        peek = clients.peek(Endpoint(alias, entity))
        start = 0
        while page := peek(start, 250):
            rows += page
            start = peeked_message(page[-1]).sequence + 1
    return list(map(StepMessage, rows))


def numbers(messages: list[StepMessage]) -> list[int]:
    return [message.application_properties["number"] for message in messages]


def wait_for(condition: Callable[[], object], run: RunProcess, seconds: float = 240.0) -> None:
    limit = time.monotonic() + seconds
    while True:
        try:
            if condition():
                return
        except IsthmusError:  # a namespace is away for a moment
            pass
        assert run.is_alive(), run.log()[-4000:]
        assert time.monotonic() < limit, run.log()[-4000:]
        time.sleep(0.5)


def wait_done(federation: FederationProcess, run: RunProcess, count: int) -> None:
    """Wait until so many messages are where they have to be."""

    def done() -> bool:
        there = [*numbers(arrived(federation)), *numbers(found(federation, "ops", "invalid"))]
        return len(set(there)) >= count

    wait_for(done, run)
    federation.wait_moved()


def arrived(federation: FederationProcess) -> list[StepMessage]:
    return found(federation, "jfk", "flights/Subscriptions/audit")


def check(federation: FederationProcess, count: int) -> None:
    """Each message is once where it has to be, as it has to be, and nothing was set aside."""
    good, bad = arrived(federation), found(federation, "ops", "invalid")
    assert Counter(numbers(good)) == Counter(n for n in range(count) if not is_bad(n))
    assert Counter(numbers(bad)) == Counter(n for n in range(count) if is_bad(n))
    for message in good:
        assert message.application_properties["checked"] == 1
        assert WHY_REASON not in message.application_properties
    for message in bad:
        own = StepMessage(sent(message.application_properties["number"]))
        assert message.body == own.body
        assert {name: message.properties[name] for name in own.properties} == own.properties
        reported = message.application_properties
        kept = {name: value for name, value in reported.items() if not name.startswith("repl-")}
        assert kept == own.application_properties  # also no "seen": it is as it was received
        assert reported[WHY_REASON] == "ValidationFailed"
        assert reported[WHY_DESCRIPTION].startswith("step validate: at /: ")
        assert reported[WHY_SOURCE] == f"ewr/{SOURCE}"
    assert not found(federation, "ewr", f"{SOURCE}/$DeadLetterQueue")


def check_verified(federation: FederationProcess, count: int, capsys: pytest.CaptureFixture[str]) -> None:
    """`isthmus verify` counts what was diverted apart, and nothing is at fault."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main(["verify", str(federation.file), "--json", "--state", str(federation.state)])
    output = capsys.readouterr().out
    assert (ended.value.code or 0) == 0, output
    result = json.loads(output)
    (reported,) = result["tasks"]
    bad = sum(map(is_bad, range(count)))
    assert (reported["verdict"], reported["entered"], reported["arrived"]) == ("clean", count, count - bad)
    assert (reported["diverted"], reported["lost"], reported["duplicated"], reported["consumed"]) == (bad, 0, 0, 0)


def test_what_fails_is_at_the_divert_queue_and_the_rest_at_the_target(
    federation: FederationProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    publish(federation, range(MESSAGES))
    run = federation.run(*RUN)
    wait_done(federation, run, MESSAGES)
    status = read_status(federation.state)
    assert status is not None
    wait_for(lambda: (read_status(federation.state) or {})["routes"][0]["diverted"], run)
    assert run.end() == 0
    (route,) = (read_status(federation.state) or {})["routes"]
    bad = sum(map(is_bad, range(MESSAGES)))
    assert (route["moved"], route["diverted"]) == (MESSAGES - bad, bad)
    assert (route["dead_lettered"], route["discarded"]) == (0, 0)
    assert '"diverted": 286' in run.log()
    check(federation, MESSAGES)
    check_verified(federation, MESSAGES, capsys)
    # The schema was too strict. What was diverted is sent, and comes after the others.
    (federation.folder / "flight.schema.json").write_text('{"type": "object"}')
    with pytest.raises(SystemExit) as ended:
        main(["redrive", str(federation.file), "flights", "--diverted", "--yes"])
    assert not ended.value.code, capsys.readouterr().out
    assert not found(federation, "ops", "invalid")
    assert sorted(numbers(arrived(federation))) == list(range(MESSAGES))
    assert {each.application_properties["checked"] for each in arrived(federation)} == {1}
    result = federation.verify("flights")
    assert result.clean, result.to_dict()
    assert result.total("diverted") == 0


@pytest.mark.soak  # three starts of Spark
def test_nothing_is_lost_or_doubled_whatever_is_killed(
    federation: FederationProcess, long_count: Callable[[int], int], capsys: pytest.CaptureFixture[str]
) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    run = federation.run(*RUN)
    published = 0
    for _ in range(long_count(5)):
        sent_now = range(published, published + MESSAGES)
        published += MESSAGES
        with ThreadPoolExecutor(1) as pool:
            publishing = pool.submit(publish, federation, sent_now, pause_seconds=1.0)  # 100 each time
            wait_for(lambda first=sent_now[0]: max(numbers(arrived(federation)), default=-1) >= first, run)
            for victim, is_away in zip(chance.sample(("sink", "reader", "run"), 3), (True, False, True), strict=True):
                run.wait_phase(("waiting", "moving", "stalled", "failed"))
                if is_away:  # what is diverted is then under way, and not acknowledged
                    federation.namespaces["ops"].kill()
                time.sleep(chance.uniform(0.0, 3.0))
                if victim == "run":
                    run.end(signal.SIGKILL)
                    run = federation.run(*RUN)
                else:
                    kill_worker(run, reads=victim == "reader")
                if is_away:
                    time.sleep(chance.uniform(0.0, 3.0))
                    federation.namespaces["ops"].restart()
            publishing.result()
    wait_done(federation, run, published)
    run.wait_phase(("waiting", "moving"))
    assert run.end() == 0
    check(federation, published)
    check_verified(federation, published, capsys)


def kill_worker(run: RunProcess, *, reads: bool) -> None:
    for process in run.ends(reads=reads)[:1]:
        try:
            process.kill()
        except psutil.NoSuchProcess:  # its lease has just ended
            continue


@pytest.mark.soak  # a minute of waiting beside a run of its own
def test_a_divert_target_that_is_unavailable_pauses_the_route_and_loses_nothing(
    federation: FederationProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    run = federation.run(*RUN)
    run.wait_phase(("waiting", "moving"))
    publish(federation, range(500))
    wait_done(federation, run, 500)
    federation.namespaces["ops"].kill()
    publish(federation, range(500, MESSAGES))

    def route() -> dict[str, Any]:
        reported: dict[str, Any] = (read_status(federation.state) or {})["routes"][0]
        return reported

    wait_for(lambda: "ops" in route()["state"] + route()["last_error"], run)
    assert (route()["away"] or {}).get("namespace") == "ops"
    time.sleep(40.0)  # longer than a route waits for a target before it gives back what it has
    stalled = route()
    assert stalled["phase"] in ("stalled", "failed")
    assert not stalled["well"]
    assert stalled["dead_lettered"] == 0
    federation.namespaces["ops"].restart()
    wait_done(federation, run, MESSAGES)
    wait_for(lambda: route()["well"], run)
    assert run.end() == 0
    check(federation, MESSAGES)
    check_verified(federation, MESSAGES, capsys)


def test_steps_before_and_behind_a_spool_divert(tmp_path: Path) -> None:
    with opened(tmp_path, SPOOLED) as federation:
        publish(federation, range(50), "orders")
        run = federation.run(*RUN)
        queues = {("jfk", "orders"): 50 - 8 - 8, ("ewr", "before"): 8, ("jfk", "behind"): 8}
        for (alias, entity), count in queues.items():
            wait_for(
                lambda alias=alias, entity=entity, count=count: len(found(federation, alias, entity)) >= count, run
            )
        wait_for(lambda: (read_status(federation.state) or {})["routes"][0]["diverted"] == 16, run)
        assert run.end() == 0
        for (alias, entity), count in queues.items():
            assert len(found(federation, alias, entity)) == count
        before, behind = found(federation, "ewr", "before"), found(federation, "jfk", "behind")
        assert numbers(before) == [n for n in range(50) if is_bad(n)]
        assert numbers(behind) == [n for n in range(10) if not is_bad(n)]
        assert {each.application_properties[WHY_SOURCE] for each in (*before, *behind)} == {"ewr/orders"}
        assert {each.application_properties[WHY_REASON] for each in behind} == {"Filtered"}
        verified = federation.verify("orders")
        assert verified.verdict is not Verdict.FAULTY, verified.to_dict()
        assert (verified.total("arrived"), verified.total("diverted"), verified.total("lost")) == (34, 16, 0)
        assert [each.body for each in behind] == [StepMessage(sent(n)).body for n in range(10) if not is_bad(n)]
