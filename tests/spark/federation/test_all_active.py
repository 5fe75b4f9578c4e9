"""Three namespaces, each with messages of its own: every message is everywhere, once, and in order."""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Iterator

import psutil
import pytest

from isthmus.amqp import section
from isthmus.replication.namespace_clients import NamespaceClients
from isthmus.supervisor.status import read_status
from isthmus.testing.federation import FederationProcess
from isthmus.topology.model import Endpoint
from isthmus.topology.route import routes

pytestmark = pytest.mark.spark

MEMBERS = ("ewr", "jfk", "lga")
PUBLISHED = 300
# Published at lga while a run ends.
LEFT = 500


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FederationProcess]:
    with FederationProcess(tmp_path_factory.mktemp("federation"), MEMBERS) as opened:
        yield opened


def published(federation: FederationProcess, *aliases: str) -> int:
    """By these members, or by all."""
    return sum(federation.published[alias] for alias in aliases or MEMBERS)


@pytest.mark.soak  # a start of Spark of its own
def test_the_closing_of_its_terminal_ends_a_run_as_ctrl_c_does(federation: FederationProcess) -> None:
    """What it left is moved by the run of the next test, which proves that nothing was lost."""
    screen, terminal = os.openpty()
    is_closing = threading.Event()

    def show() -> None:
        with open(screen, "rb", buffering=0) as shown:
            while not is_closing.is_set():
                if select.select([shown], [], [], 0.1)[0]:
                    shown.read(1 << 16)

    display = threading.Thread(target=show)
    display.start()
    try:
        run = federation.run("--retry-first", "1", terminal=terminal)
        os.close(terminal)
        run.wait_phase(("waiting", "moving"))
        started = psutil.Process(run.pid).children(recursive=True)
        federation.publish("lga", LEFT)
    finally:
        is_closing.set()
        display.join()
    assert run.wait(60) == 0
    assert read_status(run.state)["state"] == "ended"
    _, left = psutil.wait_procs(started, 10)
    assert started
    assert not left


def test_messages_reach_all_members_exactly_once(federation: FederationProcess) -> None:
    for alias in MEMBERS:
        federation.publish(alias, PUBLISHED)
    run = federation.run("--available-now", "--json", "--retry-first", "1")
    assert run.wait(240) == 0, run.log()[-3000:]
    result = federation.verify()
    reported = result.to_dict()
    assert (
        reported
        | {
            "task": "flights",
            "clean": True,
            "entered": published(federation),
            "arrived": 2 * published(federation),
            "waiting": 0,
            "expired": 0,
            "dead_lettered": 0,
            "dropped": 0,
            "lost": 0,
            "duplicated": 0,
            "out_of_order": 0,
            "unknown": 0,
        }
        == reported
    )


def test_copies_bear_provenance_and_what_the_sender_set(federation: FederationProcess) -> None:
    with NamespaceClients(federation.federation) as clients:
        page = clients.peek(Endpoint("jfk", "flights/Subscriptions/audit"))(0, published(federation))
    mark = routes(federation.federation)[0].options.mark
    copies = 0
    for message in page:
        sections = section.locate(message)
        properties = section.decode_map(message, sections.application_properties)
        if properties["publisher"] == "jfk":
            assert "repl-origin" not in properties
            continue
        copies += 1
        assert properties["repl-origin"] == f"{properties['publisher']}/flights"
        assert int(properties["repl-sequence"]) > 0
        assert properties["repl-enqueued-time"].endswith("Z")
        assert "RuleName" not in properties
        identity = section.decode_properties(message, sections.properties)["message_id"]
        assert properties[mark] == identity
        assert identity == f"{properties['publisher']}-{properties['number']}"
    assert copies == published(federation, "ewr", "lga")


def test_a_second_run_continues_and_a_third_beside_it_is_refused(federation: FederationProcess) -> None:
    run = federation.run("--json", "--retry-first", "1")
    run.wait_phase(("waiting", "moving"))
    other = federation.run("--state", str(federation.folder / "other"))
    assert other.wait(180) == 1
    assert f"is run by process {run.pid}" in other.log()
    federation.publish("lga", 200)
    federation.wait_moved()
    began = time.monotonic()
    assert run.end(signal.SIGINT) == 0, run.log()[-3000:]
    assert time.monotonic() - began < 60
    document = read_status(federation.state)
    assert document is not None
    counted = [sum(route[name] for route in document["routes"]) for name in ("moved", "dead_lettered", "discarded")]
    assert counted == [400, 0, 0], document
    result = federation.verify()
    assert result.clean, result.to_dict()
    assert result.total("arrived") == 2 * published(federation)
