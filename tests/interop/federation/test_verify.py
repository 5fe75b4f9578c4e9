"""What `verify` reports of copies that real duplicate detection dropped, and of such as were lost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from isthmus.amqp import section
from isthmus.amqp.performative import Accepted, Rejected
from isthmus.connectors.administration import Administrations, open_administration
from isthmus.connectors.servicebus.message.message_rewriter import MessageRewriter
from isthmus.replication.namespace_clients import NamespaceClients
from isthmus.replication.verification.identity import identify
from isthmus.replication.verification.reconciliation.count import Verdict
from isthmus.replication.verification.verify import verify
from isthmus.testing.federation import TOPIC, FederationProcess
from isthmus.topology import TopicState, plan
from isthmus.topology.file.source import load
from isthmus.topology.model import Endpoint, Federation
from isthmus.topology.route import routes
from isthmus.transport import Receiver, Sender

COUNT = 25


@pytest.fixture(name="federation", scope="module")
def _federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FederationProcess]:
    with FederationProcess(tmp_path_factory.mktemp("federation"), settings=["duplicates: message-id"]) as running:
        yield running


def publish(federation: FederationProcess, alias: str, names: list[str]) -> None:
    messages = [section.encode_message(b"body", properties={"message_id": name}) for name in names]
    with NamespaceClients(federation.federation) as clients, clients.open(Endpoint(alias, TOPIC)) as client:
        Sender(client, TOPIC).wait_ready().send_all(messages)


def move(federation: FederationProcess, source: str, count: int, *, lose: bool = False) -> None:
    """Moves what waits before a route as its sink would; or loses it."""
    route = next(route for route in routes(federation.federation) if route.source.alias == source)
    rewriter = MessageRewriter(f"{source}/{TOPIC}", route.target.alias)
    with (
        NamespaceClients(federation.federation) as clients,
        clients.open(route.source) as client,
        clients.open(route.target) as target,
    ):
        sender = Sender(target, route.target.entity).wait_ready()
        receiver = Receiver(client, route.source.entity).wait_attached()
        receiver.grant(count)
        client.wait_until(lambda: receiver.received >= count, 20, "messages")
        for run in receiver.take():
            for payload in () if lose else run.payloads:
                copy = rewriter.copy(payload, time.time_ns() // 1_000_000)
                assert isinstance(copy, bytes)
                sender.send_all([copy])
            receiver.dispose(run.first_id, run.first_id + len(run.tags) - 1)


def test_dropped_copies_are_distinguished_from_lost_ones(federation: FederationProcess) -> None:
    both = [f"both-{number}" for number in range(COUNT)]
    publish(federation, "ewr", [*both, "once"])
    publish(federation, "jfk", both)
    assert federation.verify().total("waiting") == 2 * COUNT + 1
    move(federation, "ewr", COUNT + 1)
    move(federation, "jfk", COUNT)
    result = federation.verify()
    reported = [result.total(kind) for kind in ("arrived", "waiting", "dropped", "lost", "duplicated")]
    assert (reported, result.clean) == ([1, 0, 2 * COUNT, 0, 0], True)

    publish(federation, "ewr", ["gone"])
    move(federation, "ewr", 1, lose=True)
    result = federation.verify()
    assert (result.total("dropped"), result.total("lost"), result.clean) == (2 * COUNT, 1, False)


BOOKINGS = """tasks:
  bookings: {pattern: all-active, queue: bookings, members: [ewr, jfk]%s}
"""


def apply_queue(federation: FederationProcess, more: str = "") -> Federation:
    """A task for a queue, between the same namespaces."""
    head = federation.file.read_text(encoding="utf-8").partition("tasks:")[0]
    file = federation.folder / f"bookings{len(more)}.yaml"
    file.write_text(head + BOOKINGS % more, encoding="utf-8")
    declared = load(file)
    with Administrations(declared) as administrations:
        applied = administrations.apply(plan(declared, administrations.observe()))
    assert applied.error is None
    return declared


def receive(federation: Federation, endpoint: Endpoint, count: int, outcome: Any = None) -> list[bytes]:
    """Takes messages as an application does."""
    with NamespaceClients(federation) as clients, clients.open(endpoint) as client:
        receiver = Receiver(client, endpoint.entity).wait_attached()
        receiver.grant(count)
        client.wait_until(lambda: receiver.received >= count, 20, "messages")
        payloads = []
        for run in receiver.take():
            payloads.extend(run.payloads)
            receiver.dispose(run.first_id, run.first_id + len(run.tags) - 1, outcome or Accepted())
        client.flush()
        return payloads


def send(federation: Federation, endpoint: Endpoint, messages: list[bytes]) -> None:
    with NamespaceClients(federation) as clients, clients.open(endpoint) as client:
        Sender(client, endpoint.entity).wait_ready().send_all(messages)


def replicate(federation: Federation, source: str, count: int) -> None:
    """Moves what waits before a route as its sink would."""
    route = next(route for route in routes(federation) if route.source.alias == source)
    rewriter = MessageRewriter(f"{source}/{route.target.entity}", route.target.alias)
    copies = [
        rewriter.copy(payload, time.time_ns() // 1_000_000) for payload in receive(federation, route.source, count)
    ]
    send(federation, route.target, [copy for copy in copies if isinstance(copy, bytes)])


def numbered(prefix: str, count: int, **own: Any) -> list[bytes]:
    return [
        section.encode_message(
            f"{prefix} {number}".encode(),
            properties={"message_id": f"{prefix}-{number}"},
            application_properties={"number": number} | own,
        )
        for number in range(count)
    ]


def test_what_consumers_of_a_queue_took_is_not_called_lost_and_an_audit_subscription_shows_which(
    federation: FederationProcess,
) -> None:
    declared = apply_queue(federation)
    send(declared, Endpoint("ewr", "bookings"), numbered("booking", 40))
    replicate(declared, "ewr", 40)
    (whole,) = verify(declared)
    assert (whole.verdict, whole.total("arrived")) == (Verdict.CLEAN, 40)
    receive(declared, Endpoint("jfk", "bookings/Subscriptions/consumers"), 25)
    (drained,) = verify(declared)
    assert (drained.verdict, drained.total("lost"), drained.total("consumed")) == (Verdict.UNCLEAR, 0, 25)
    assert any(
        "25 messages are no longer there in bookings/Subscriptions/consumers at jfk" in each for each in drained.doubts
    )

    audited = apply_queue(federation, ", audit: 1h")
    assert [each.verdict for each in verify(audited)] == [Verdict.UNCLEAR]  # nothing has come since it was made
    send(audited, Endpoint("ewr", "bookings"), numbered("later", 20))
    replicate(audited, "ewr", 20)
    receive(audited, Endpoint("jfk", "bookings/Subscriptions/consumers"), 35)
    receive(audited, Endpoint("ewr", "bookings/Subscriptions/consumers"), 60)
    administration = open_administration(audited.namespaces["ewr"])
    try:
        size = administration.size("bookings")
        assert size is not None
        assert 0 < size[0] < size[1] == 5 << 30
        assert administration.size("nothing") is None
        topic = administration.observe("ewr", [TopicState(name="bookings")]).topic("bookings")
        assert topic is not None
        kept = topic.subscription("audit")
        assert kept is not None
        assert kept.default_ttl_ms == 3_600_000
    finally:
        administration.close()
    (reported,) = verify(audited)
    assert (reported.verdict, reported.total("entered"), reported.total("arrived")) == (Verdict.CLEAN, 20, 20)

    send(audited, Endpoint("ewr", "bookings"), numbered("aside", 3))
    route = next(route for route in routes(audited) if route.source.alias == "ewr")
    receive(audited, route.source, 3, Rejected())
    (aside,) = verify(audited)
    assert (aside.verdict, aside.total("dead_lettered"), aside.total("lost")) == (Verdict.FAULTY, 3, 0)


def test_forged_provenance_neither_hides_a_loss_nor_passes(federation: FederationProcess) -> None:
    declared = federation.federation
    before = federation.verify()
    send(declared, Endpoint("ewr", TOPIC), numbered("real", 2))
    (last,) = {max(each.entered for each in before.comparisons if each.origin == each.member)}
    number = last + 1
    route = next(route for route in routes(declared) if route.source.alias == "ewr")
    taken = receive(declared, route.source, 2)
    numbers = [identify(payload).number for payload in taken]
    forged = [
        numbered("forged", 1, **{"repl-origin": f"ewr/{TOPIC}", "repl-sequence": str(each)})[0]
        for each in (*numbers, number + 10_000)
    ]
    # Under other ids: detection must not drop them.
    forged = [message.replace(b"forged-0", b"forged-%d" % index) for index, message in enumerate(forged)]
    send(declared, Endpoint("jfk", TOPIC), forged)
    found = federation.verify()
    added = {kind: found.total(kind) - before.total(kind) for kind in ("arrived", "lost")}
    assert added == {"arrived": 0, "lost": 2}
    assert found.verdict is Verdict.FAULTY


def test_what_expired_before_its_route_is_no_clean_result(federation: FederationProcess) -> None:
    declared = apply_queue(federation, ", audit: 2h")
    (before,) = verify(declared)
    short = section.encode_message(b"short", header=section.Header(ttl_ms=1), properties={"message_id": "short"})
    send(declared, Endpoint("ewr", "bookings"), [short, *numbered("behind", 1)])
    limit = time.monotonic() + 20
    doubts: tuple[str, ...] = ()
    while not doubts and time.monotonic() < limit:
        (found,) = verify(declared)
        doubts = found.doubts
        time.sleep(0.0 if doubts else 0.2)
    assert not before.doubts
    assert doubts == (
        "1 message is no longer there in bookings/Subscriptions/audit at ewr (expired, or consumed by someone)",
    )


def test_a_look_continues_over_a_new_connection_where_the_namespace_has_closed_the_old_one(
    federation: FederationProcess,
) -> None:
    place = Endpoint("jfk", f"{TOPIC}/Subscriptions/audit")
    publish(federation, "jfk", ["looked-at"])
    with NamespaceClients(federation.federation) as clients:
        look = clients.peek(place)
        seen = look(0, 10)
        federation.namespaces["jfk"].restart()
        assert look(0, 10) == seen != []


def test_a_patient_look_waits_for_a_namespace_that_is_started_again(federation: FederationProcess) -> None:
    place = Endpoint("jfk", f"{TOPIC}/Subscriptions/audit")
    publish(federation, "jfk", ["waited-for"])
    with NamespaceClients(federation.federation, patience_seconds=60.0) as patient, ThreadPoolExecutor(1) as pool:
        look = patient.peek(place)
        seen = look(0, 10)
        federation.namespaces["jfk"].kill()
        started = pool.submit(federation.namespaces["jfk"].start)
        assert look(0, 10) == seen != []
        started.result()


def test_a_look_continues_where_the_namespace_has_ended_its_links_alone(federation: FederationProcess) -> None:
    place = Endpoint("jfk", f"{TOPIC}/Subscriptions/audit")
    publish(federation, "jfk", ["linked"])
    with NamespaceClients(federation.federation) as clients:
        look = clients.peek(place)
        seen = look(0, 10)
        clients._management(place).close()  # as where a namespace detaches links that were idle
        assert look(0, 10) == seen != []


DIVIDED = """tasks:
  parted:
    pattern: split
    source: ewr
    queue: parted
    targets: [{to: jfk, queue: left, filter: "a = 1"}, {to: jfk, name: two, queue: right, filter: "b = 1"}]
    otherwise: {to: jfk, name: rest, queue: rest}
"""


def test_a_message_of_a_divided_queue_is_missed_at_each_target_that_selects_it(federation: FederationProcess) -> None:
    file = federation.folder / "parted.yaml"
    file.write_text(federation.file.read_text(encoding="utf-8").partition("tasks:")[0] + DIVIDED, encoding="utf-8")
    declared = load(file)
    with Administrations(declared) as administrations:
        assert administrations.apply(plan(declared, administrations.observe())).error is None
    messages = [message for own in ({"a": 1}, {"a": 1, "b": 1}, {"b": 1}) for message in numbered("m", 1, **own)]
    send(declared, Endpoint("ewr", "parted"), messages)
    left, right, _ = routes(declared)
    copies = MessageRewriter("ewr/parted", "jfk")
    for route, lost in ((left, False), (right, True)):
        taken = receive(declared, route.source, 2)
        kept = [each for each in taken if not (lost and identify(each).number == 2)]
        made = [copies.copy(each, time.time_ns() // 1_000_000) for each in kept]
        send(declared, route.target, [each for each in made if isinstance(each, bytes)])
    (result,) = verify(declared)
    found = {each.member: (each.arrived, each.consumed) for each in result.comparisons if each.origin != each.member}
    assert found == {"jfk/left": (2, 0), "jfk/right": (1, 1), "jfk/rest": (0, 0)}
    assert (result.total("lost"), result.verdict) == (0, Verdict.UNCLEAR)
