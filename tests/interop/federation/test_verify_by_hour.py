"""`verify --by hour` of real namespaces: messages of several hours, of which some are lost in one."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from harness.bridge.hosted_lease import carried
from isthmus.amqp import section
from isthmus.amqp.performative import Accepted, Released
from isthmus.cli.app import main
from isthmus.replication.ledger.ledger import noted
from isthmus.replication.namespace_clients import NamespaceClients
from isthmus.replication.route_spec import route_spec
from isthmus.replication.verification.reconciliation.count import COUNTS, Verdict
from isthmus.replication.verification.reconciliation.reconcile import Reconciliation
from isthmus.testing.federation import FederationProcess
from isthmus.topology.model import Endpoint
from isthmus.topology.route import routes
from isthmus.transport import Receiver, Sender

COUNT = 20
HOUR_SECONDS = 3600
# How many hours ago each part is published, and the one in which messages are lost.
AGES = (4, 3, 2)
BAD = 3
TASKS = """\
  flights: {pattern: all-active, topic: flights, members: [ewr, jfk], audit: 1d}
  orders: {pattern: move, source: ewr, queue: orders, target: jfk}
  parcels: {pattern: move, source: ewr, queue: parcels, target: jfk, ledger: {path: %s}}"""


@pytest.fixture(name="moments", scope="module")
def _moments() -> dict[int, float]:
    """The middle of each hour."""
    now = time.time()
    return {age: now - now % HOUR_SECONDS - age * HOUR_SECONDS + HOUR_SECONDS / 2 for age in AGES}


@pytest.fixture(name="names", scope="module")
def _names(moments: dict[int, float]) -> dict[int, str]:
    """How `verify` calls the hours."""
    return {age: time.strftime("%Y-%m-%dT%H:00:00Z", time.gmtime(moment)) for age, moment in moments.items()}


@pytest.fixture(name="federation", scope="module")
def _federation(tmp_path_factory: pytest.TempPathFactory, moments: dict[int, float]) -> Iterator[FederationProcess]:
    folder = tmp_path_factory.mktemp("federation")
    running = FederationProcess(folder, written=TASKS % (folder / "ledger"))
    ewr = running.namespaces["ewr"]
    ewr.arguments = set_to(moments[AGES[0]])
    with running:
        for age in AGES:
            ewr.stop()
            ewr.arguments = set_to(moments[age])
            ewr.start()
            for entity in ("flights", "orders", "parcels"):
                send(running, entity)
                if age == BAD:
                    lose(running, entity)
            carry(running)
        yield running


def set_to(moment: float) -> tuple[str, ...]:
    """Options that give a namespace this time now."""
    return "--clock-offset", str(moment - time.time())


def send(federation: FederationProcess, entity: str) -> None:
    messages = [section.encode_message(b"body", application_properties={"number": number}) for number in range(COUNT)]
    with NamespaceClients(federation.federation) as clients, clients.open(Endpoint("ewr", entity)) as client:
        Sender(client, entity).wait_ready().send_all(messages)


def lose(federation: FederationProcess, entity: str) -> None:
    """Takes the sixth to the eighth message from before the route, as no application should; of orders also the first."""
    (source,) = (route.source for route in routes(federation.federation, entity) if route.source.alias == "ewr")
    with NamespaceClients(federation.federation) as clients, clients.open(source) as client:
        receiver = Receiver(client, source.entity).wait_attached()
        receiver.grant(8)
        client.wait_until(lambda: receiver.received >= 8, 20, "messages")
        index = 0
        for run in receiver.take():
            for at in range(len(run.tags)):
                is_lost = index in (5, 6, 7) or (index == 0 and entity == "orders")
                receiver.dispose(run.first_id + at, run.first_id + at, Accepted() if is_lost else Released())
                index += 1
        client.flush()


def carry(federation: FederationProcess) -> None:
    """All routes, until nothing waits."""
    folder = federation.folder / f"lease-{time.monotonic_ns()}"
    folder.mkdir()
    declared = federation.federation
    with carried(folder, [noted(route, route_spec(route, declared)) for route in routes(declared)]):
        federation.wait_moved(120)


def by_hour(result: Reconciliation, *kinds: str) -> dict[str, tuple[int, ...]]:
    (compared,) = (each for each in result.comparisons if each.origin.startswith("ewr") and each.member == "jfk")
    assert compared.hours is not None
    for count in COUNTS:
        assert sum(each.counts[count.name] for each in compared.hours) == compared.counts[count.name]
        assert sum(each.counts[count.name] for each in result.hours) == result.total(count.name)
    return {each.name: tuple(each.counts[kind] for kind in kinds) for each in compared.hours}


def test_of_a_topic_losses_are_reported_in_their_hour_alone(
    federation: FederationProcess, names: dict[int, str], capsys: pytest.CaptureFixture[str]
) -> None:
    result = federation.verify("flights", by_hour=True)
    assert by_hour(result, "entered", "arrived", "lost") == {
        names[age]: (COUNT, COUNT - 3, 3) if age == BAD else (COUNT, COUNT, 0) for age in AGES
    }
    assert result.verdict is Verdict.FAULTY
    with pytest.raises(SystemExit) as ended:
        main(["verify", str(federation.file), "--task", "flights", "--by", "hour", "--state", str(federation.state)])
    assert ended.value.code == 1
    shown = capsys.readouterr().out
    rows = [
        f"{names[age][:16].replace('T', ' ')}{COUNT:9}{COUNT - 3 * (age == BAD):9}{3 * (age == BAD):6}" for age in AGES
    ]
    assert "\n".join(("task flights, by hour (UTC)", "hour              entered  arrived  lost", *rows)) in shown
    assert all(len(line) <= 80 for line in shown.partition("by hour")[2].splitlines()[:5])


def test_of_a_queue_a_gap_is_reported_in_the_hour_of_its_neighbours(
    federation: FederationProcess, names: dict[int, str]
) -> None:
    """What enters it is not retained. The first message of an hour that is lost is between two hours."""
    result = federation.verify("orders", by_hour=True)
    # The target is a queue of applications: they may have taken what is not there.
    assert by_hour(result, "entered", "arrived", "consumed") == {
        **{names[age]: (COUNT - 1, COUNT - 4, 3) if age == BAD else (COUNT, COUNT, 0) for age in AGES},
        "unknown": (1, 0, 1),
    }
    assert result.verdict is Verdict.UNCLEAR


def test_a_ledger_shows_the_hour_of_what_applications_have_taken(
    federation: FederationProcess, names: dict[int, str], capsys: pytest.CaptureFixture[str]
) -> None:
    first, last = COUNT - 2, 2 * COUNT  # all of the bad hour, and the last two of the one before
    with NamespaceClients(federation.federation) as clients, clients.open(Endpoint("jfk", "parcels")) as client:
        receiver = Receiver(client, "parcels").wait_attached()
        wanted = last - 3
        receiver.grant(wanted)
        client.wait_until(lambda: receiver.received >= wanted, 20, "messages")
        index = 0
        for run in receiver.take():
            for at in range(len(run.tags)):
                taken = index >= first
                receiver.dispose(run.first_id + at, run.first_id + at, Accepted() if taken else Released())
                index += 1
        client.flush()
    with pytest.raises(SystemExit) as ended:
        main(["verify", str(federation.file), "--task", "parcels", "--by", "hour", "--json"])
    assert ended.value.code == 3
    (reported,) = json.loads(capsys.readouterr().out.splitlines()[-1])["tasks"]
    (compared,) = (each for each in reported["comparisons"] if each["member"] == "jfk")
    found = {
        each["hour"]: tuple(each[kind] for kind in ("entered", "arrived", "delivered", "consumed"))
        for each in compared["hours"]
    }
    good, bad, after = (names[age] for age in AGES)
    assert found == {
        good: (COUNT, COUNT - 2, 2, 0),
        bad: (COUNT, 0, COUNT - 3, 3),
        after: (COUNT, COUNT, 0, 0),
    }
