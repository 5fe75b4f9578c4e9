"""All-active over members of which only one has rules: everything reaches all once, nothing circulates, and a kill loses nothing.

Two members are event hubs, whose namespaces start in a second; `examples/four-systems` has Kafka and RabbitMQ as well.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from harness.bridge.hosted_run import HostedRun
from isthmus.amqp import section
from isthmus.connectors.administration import Administrations
from isthmus.connectors.servicebus.head import peeked_message
from isthmus.demo.consumer import stamp
from isthmus.demo.example.application import publish
from isthmus.errors import IsthmusError
from isthmus.replication.namespace_clients import NamespaceClients
from isthmus.replication.verification.reconciliation.count import Verdict
from isthmus.replication.verification.verify import verify
from isthmus.supervisor.watch.watch import BacklogMeter
from isthmus.testing.namespace import NamespaceProcess
from isthmus.topology import plan
from isthmus.topology.file.source import load
from isthmus.topology.model import Endpoint, Federation
from isthmus.topology.route import routes

MEMBERS = ("ewr", "hub", "iad")
MESSAGES = 200
SECONDS = 120.0
PAGE = 250


class Mixed:
    """The federation, and what was published by each member to each topic."""

    def __init__(self, folder: Path, file: Path) -> None:
        self.folder, self.file = folder, file
        self.federation: Federation = load(str(file)).anchored(folder)
        self._numbers = itertools.count(1)
        self._runs = itertools.count(1)

    def run(self) -> HostedRun:
        return HostedRun(self.file, self.folder / f"run{next(self._runs)}")

    def publish(self, topic: str, first: int, last: int) -> None:
        for alias in MEMBERS:
            messages = [message(alias, topic, number) for number in range(first, last + 1)]
            assert len(list(publish(self.federation, Endpoint(alias, topic), messages))) == len(messages)

    def contents(self, topic: str) -> dict[str, list[tuple[str, int]]]:
        """By member, publisher and number of what is there, in order."""
        found: dict[str, list[tuple[str, int]]] = {}
        with NamespaceClients(self.federation, "test") as clients:
            for alias in MEMBERS:
                entity = f"{topic}/Subscriptions/audit" if alias == "ewr" else topic
                peek, start = clients.peek(Endpoint(alias, entity)), 0
                at = found[alias] = []
                while page := peek(start, PAGE):
                    at += [stamp(each)[:2] for each in page]
                    start = peeked_message(page[-1]).sequence + 1
        return found

    def wait_moved(self, topic: str, count: int) -> dict[str, list[tuple[str, int]]]:
        """Waits until so many different messages are everywhere and no route has anything before it."""
        limit = time.monotonic() + SECONDS
        while True:
            found = self.contents(topic)
            if all(len(set(each)) == count for each in found.values()) and not self._waiting():
                return self.contents(topic)
            assert time.monotonic() < limit, {alias: len(set(each)) for alias, each in found.items()}
            time.sleep(0.3)

    def _waiting(self) -> int:
        found = 0
        with NamespaceClients(self.federation, "test") as clients:
            for route in routes(self.federation):
                with suppress(IsthmusError):
                    found += BacklogMeter().measure(clients, route).waiting
        return found


def message(alias: str, topic: str, number: int) -> bytes:
    publisher = f"{alias}-{topic}"
    return section.encode_message(
        b"x" * 100,
        properties={"message_id": f"{publisher}-{number}"},
        application_properties={"publisher": publisher, "number": number},
    )


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mixed]:
    folder = tmp_path_factory.mktemp("mixed")
    namespaces = {alias: NamespaceProcess(folder / alias) for alias in MEMBERS}
    with pytest.MonkeyPatch.context() as patch:
        try:
            for alias, served in namespaces.items():
                served.start()
                patch.setenv(f"MIXED_{alias.upper()}", served.connection_string)
            ca = {alias: served.ca_file for alias, served in namespaces.items()}
            file = folder / "isthmus.yaml"
            file.write_text(
                f"isthmus: 1\nnamespaces:\n  ewr: {{connection: env:MIXED_EWR, ca_file: {ca['ewr']}}}\n"
                f"  hub: {{kind: eventhubs, connection: env:MIXED_HUB, ca_file: {ca['hub']}, checkpoints: checkpoints, "
                "checkpoint_seconds: 0.1}\n"
                f"  iad: {{kind: eventhubs, connection: env:MIXED_IAD, ca_file: {ca['iad']}, checkpoints: checkpoints, "
                "checkpoint_seconds: 0.1}\n"
                "tasks:\n  flights: {pattern: all-active, topic: flights, members: [ewr, hub, iad], audit: 1d}\n"
                "  renamed: {pattern: all-active, topic: renamed, members: [ewr, hub, iad], audit: 1d,\n"
                '    steps: [{set: "SET sys.MessageId = newid()"}]}\n'
            )
            made = Mixed(folder, file)
            with Administrations(made.federation) as administrations:
                applied = administrations.apply(plan(made.federation, administrations.observe()))
                assert applied.error is None
            yield made
        finally:
            for served in namespaces.values():
                served.kill()


def test_everything_reaches_all_once_and_in_order_also_through_a_step_that_renames(mixed: Mixed) -> None:
    run = mixed.run()
    try:
        for topic in ("flights", "renamed"):
            mixed.publish(topic, 1, MESSAGES)
        for topic in ("flights", "renamed"):
            for alias, found in mixed.wait_moved(topic, MESSAGES * len(MEMBERS)).items():
                by_publisher = {
                    publisher: [number for name, number in found if name == publisher]
                    for publisher in {name for name, _ in found}
                }
                numbers = list(range(1, MESSAGES + 1))
                assert by_publisher == {f"{each}-{topic}": numbers for each in MEMBERS}, f"{topic} at {alias}"
    finally:
        run.end()
    results = {each.task: each for each in verify(mixed.federation)}
    assert results["flights"].verdict is Verdict.CLEAN, results["flights"].to_dict()
    assert results["flights"].total("arrived") == MESSAGES * len(MEMBERS) * (len(MEMBERS) - 1)


def test_a_kill_loses_nothing_and_a_second_copy_goes_no_further(mixed: Mixed) -> None:
    run = mixed.run()
    mixed.publish("flights", MESSAGES + 1, 4 * MESSAGES)
    run.end()  # kill -9, wherever it is
    run = mixed.run()
    try:
        found = mixed.wait_moved("flights", 4 * MESSAGES * len(MEMBERS))
    finally:
        run.end()
    assert len(found["ewr"]) == 4 * MESSAGES * len(MEMBERS)  # which drops second copies
    for alias in ("hub", "iad"):
        doubled = len(found[alias]) - len(set(found[alias]))
        own = [each for each in found[alias] if each[0] == f"{alias}-flights"]
        assert len(own) == len(set(own)), f"{alias} got its own messages back"
        assert doubled <= 2 * 3 * MESSAGES
