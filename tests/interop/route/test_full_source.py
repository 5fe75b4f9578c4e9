"""A backlog that does not fill the topic: mailboxes, and routes through a spool, on real namespaces; leases without Spark."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from harness.bridge.hosted_run import HostedRun
from isthmus.amqp import section
from isthmus.connectors.administration import Administrations
from isthmus.connectors.servicebus.head import peeked_message
from isthmus.connectors.spool.backlog import spool_backlog
from isthmus.errors import IsthmusError
from isthmus.operations.redrive.redrive import redrive
from isthmus.operations.redrive.set_aside import Choice, count_queue
from isthmus.replication.namespace_clients import NamespaceClients
from isthmus.replication.shuffle.contents import SpoolContents
from isthmus.supervisor.watch.drop_watch import DropWatch
from isthmus.supervisor.watch.fill import Fill, FillWatch
from isthmus.testing.federation import FederationProcess
from isthmus.topology import Change, QueueState, plan
from isthmus.topology.model import Endpoint
from isthmus.topology.redrive import redrives
from isthmus.topology.route import routes

TASKS = """\
  flights: {pattern: all-active, topic: flights, members: [ewr, jfk], mailbox: true, when_full: drop, audit: 1d, lock_duration: 5s}
  planes: {pattern: copy, source: ewr, topic: planes, target: jfk, target_queue: planes, when_full: spool, lock_duration: 5s}
"""
MAILBOX = "isthmus.flights.jfk"
COUNT = 300
LIMIT_SECONDS = 180.0


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FederationProcess]:
    with FederationProcess(tmp_path_factory.mktemp("full"), ("ewr", "jfk"), written=TASKS) as opened:
        yield opened


@contextmanager
def carried(federation: FederationProcess, name: str) -> Iterator[HostedRun]:
    run = HostedRun(federation.file, federation.folder / name)
    try:
        yield run
    finally:
        run.end()


def numbers(federation: FederationProcess, alias: str, entity: str) -> list[int]:
    """The contents of an entity, in order."""
    found: list[int] = []
    with NamespaceClients(federation.federation) as clients:
        peek = clients.peek(Endpoint(alias, entity))
        start = 0
        while page := peek(start, 250):
            found += (section.decode_map(each, section.locate(each).application_properties)["number"] for each in page)
            start = peeked_message(page[-1]).sequence + 1
    return found


def wait(holds: Callable[[], bool], reported: Callable[[], object]) -> None:
    limit = time.monotonic() + LIMIT_SECONDS
    while True:
        try:
            if holds():
                return
        except IsthmusError:
            pass
        assert time.monotonic() < limit, reported()
        time.sleep(0.1)


def test_a_backlog_waits_in_the_mailbox_and_its_copies_come_from_the_topic(federation: FederationProcess) -> None:
    with Administrations(federation.federation) as administrations:
        assert not plan(federation.federation, administrations.observe()).changes
    federation.publish("ewr", COUNT)
    wait(lambda: len(numbers(federation, "ewr", MAILBOX)) == COUNT, lambda: numbers(federation, "ewr", MAILBOX))
    assert numbers(federation, "ewr", f"flights/Subscriptions/{MAILBOX}") == []
    fill = FillWatch(federation.federation, routes(federation.federation, "flights")).start()
    wait(lambda: {("ewr", "flights"), ("ewr", MAILBOX)} <= {each[:2] for each in fill.fills()}, fill.fills)
    fill.close()
    with carried(federation, "mailbox") as run:
        federation.publish("jfk", 50)
        wait(lambda: len(numbers(federation, "jfk", "flights/Subscriptions/audit")) == COUNT + 50, run.log)
        federation.wait_moved()
        result = federation.verify()
    assert result.clean, result.to_dict()
    assert result.total("arrived") == COUNT + 50
    assert numbers(federation, "ewr", MAILBOX) == []


def set_status(federation: FederationProcess, status: str) -> None:
    """Of the mailbox; one that is disabled refuses as one that is full does."""
    with Administrations(federation.federation) as administrations:
        before = administrations.observe()["ewr"].queue(MAILBOX)
        after = QueueState(name=MAILBOX, status=status)
        change = Change(alias="ewr", action="update", kind="queue", topic=MAILBOX, after=after, before=before)
        assert administrations.make([change], lambda _: None).error is None


def test_what_a_mailbox_did_not_take_is_found_and_sent_on(federation: FederationProcess) -> None:
    arrived = federation.verify().total("arrived")
    set_status(federation, "SendDisabled")
    federation.publish("ewr", 20)
    dead = f"flights/Subscriptions/{MAILBOX}/$DeadLetterQueue"
    wait(lambda: len(numbers(federation, "ewr", dead)) == 20, lambda: numbers(federation, "ewr", dead))
    set_status(federation, "Active")
    result = federation.verify()
    assert (result.total("dead_lettered"), result.total("lost")) == (20, 0), result.to_dict()
    sent = 0
    with NamespaceClients(federation.federation, "test") as clients:
        for each in redrives(federation.federation, ["flights"]):
            client = clients.open(each.source)
            found = count_queue(client, each, Choice())
            client.close(1.0)
            if found.chosen:
                sent += redrive(clients, federation.federation, each, found, Choice()).sent
    assert sent == 20
    result = federation.verify()
    assert result.clean, result.to_dict()
    assert result.total("arrived") == arrived + 20


def test_the_oldest_messages_of_a_mailbox_that_is_nearly_full_are_deleted(federation: FederationProcess) -> None:
    before = federation.published["ewr"]
    federation.publish("ewr", 100)
    wait(lambda: len(numbers(federation, "ewr", MAILBOX)) == 100, lambda: numbers(federation, "ewr", MAILBOX))
    chosen = routes(federation.federation, "flights")
    route = next(each for each in chosen if each.source.alias == "ewr")
    fills = [
        Fill("ewr", MAILBOX, 95_000, 100_000, kind="queue")
    ]  # 15,000 bytes too much, of messages of 1,000 and some
    is_mine: list[bool] = []
    watch = DropWatch(
        chosen, lambda: fills, lambda: NamespaceClients(federation.federation), lambda route: bool(is_mine)
    )
    watch.start()
    is_mine.append(True)
    wait(lambda: watch.dropped(route.name) > 0, lambda: "nothing was deleted")
    watch.close()
    dropped = watch.dropped(route.name)
    assert 10 <= dropped <= 15
    left = numbers(federation, "ewr", MAILBOX)
    assert left == list(range(before + 1 + dropped, before + 101))
    topic = numbers(federation, "ewr", "flights/Subscriptions/audit")
    assert topic[-100:] == list(range(before + 1, before + 101)), "other subscriptions keep them"


def test_nothing_waits_at_the_source_while_the_target_is_unavailable_and_nothing_is_lost(
    federation: FederationProcess,
) -> None:
    spool = federation.state / "spools" / "planes.ewr.jfk" / "in"
    first = federation.published["ewr"]
    chosen = routes(federation.federation, "planes")
    federation.namespaces["jfk"].kill()
    with carried(federation, "away") as run:
        federation.publish("ewr", COUNT, topic="planes")
        wait(lambda: numbers(federation, "ewr", "planes/Subscriptions/isthmus.planes.jfk") == [], run.log)
        wait(lambda: spool_backlog(spool).messages == COUNT, run.log)
    assert [*SpoolContents({each.name: each for each in chosen}, federation.state).waiting("planes.ewr.jfk")][
        COUNT - 1 :
    ]
    with carried(federation, "back") as run:
        federation.namespaces["jfk"].start()
        federation.publish("ewr", COUNT, topic="planes")
        wait(lambda: len(numbers(federation, "jfk", "planes")) >= 2 * COUNT, run.log)
        wait(lambda: spool_backlog(spool).messages == 0, run.log)
        run.end()
    assert numbers(federation, "jfk", "planes") == list(range(first + 1, first + 2 * COUNT + 1))
    result = federation.verify("planes")
    assert not result.total("lost"), result.to_dict()


def test_a_mailbox_that_is_given_up_is_named_with_what_waits_in_it(federation: FederationProcess) -> None:
    from isthmus.topology.file.source import load
    from isthmus.topology.planning.orphan import find_orphans

    file = federation.folder / "without.yaml"
    file.write_text(federation.file.read_text().replace(", mailbox: true, when_full: drop", ""))
    without = load(file)
    with Administrations(without) as administrations:
        applied = administrations.apply(plan(without, administrations.observe()))
        assert applied.error is None
        inventory = administrations.inventory()
        orphans = find_orphans(without, inventory.values())
        assert {(each.alias, each.change.path) for each in orphans} == {
            ("ewr", MAILBOX),
            ("jfk", "isthmus.flights.ewr"),
        }
        waiting = {each.alias: administrations.waiting(each.change) for each in orphans}
    assert waiting["ewr"] == len(numbers(federation, "ewr", MAILBOX))
