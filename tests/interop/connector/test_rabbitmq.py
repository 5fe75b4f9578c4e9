"""RabbitMQ on a real node: redelivery, blocked connections, access, dead letters, kills, a federation with it."""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from harness.bridge.hosted_lease import carried
from harness.bridge.hosted_run import HostedRun
from harness.client.fault_client import connected
from harness.client.rabbitmq_client import RabbitClient
from harness.server.rabbitmq_server import PASSWORD, USER, RabbitServer, rabbit_server
from isthmus.amqp import section
from isthmus.bridge import registry
from isthmus.bridge.delivery_event import Disposition, Granted, Lost, Opened, Outcome, Send
from isthmus.bridge.port import Arrived, Exhausted, Noted, SourceLost, SourceOpened
from isthmus.bridge.refusal import RefusalKind
from isthmus.bridge.route_spec import End, RouteSpec
from isthmus.connectors.administration import Administrations, NamespaceUnreachableError
from isthmus.connectors.rabbitmq.dead_letter import REASON_HEADER
from isthmus.connectors.rabbitmq.mapping.mapping import to_message
from isthmus.connectors.rabbitmq.mapping.outward import to_record
from isthmus.connectors.rabbitmq.protocol import property as props
from isthmus.connectors.rabbitmq.protocol import table
from isthmus.connectors.rabbitmq.protocol.property import Properties, Record
from isthmus.connectors.rabbitmq.system import SYSTEM
from isthmus.errors import ConfigError, ConnectionLostError, EntityNotFoundError
from isthmus.replication.namespace_clients import NamespaceClients
from isthmus.supervisor.watch.binding import BindingWatch
from isthmus.testing.bridge.message import key_of, message
from isthmus.testing.namespace import namespace
from isthmus.topology import plan, read
from isthmus.topology.file.source import load
from isthmus.topology.route import routes
from isthmus.transport import Sender

WAIT_SECONDS = 120.0
LARGEST_BYTES = 2_000_000
# What is taken at once, and what may be published and not taken: the test's client is slow.
TAKEN = 200


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitServer]:
    folder = tmp_path_factory.mktemp("rabbit")
    with rabbit_server(folder, settings=(f"max_message_size = {LARGEST_BYTES}",)) as made:
        yield made


@pytest.fixture(autouse=True)
def _password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RABBIT_PASSWORD", PASSWORD)


def options(server: RabbitServer, entity: str, **others: str) -> dict[str, str]:
    return {
        "host": f"127.0.0.1:{server.port}",
        "username": USER,
        "password": "env:RABBIT_PASSWORD",
        "entity": entity,
        **others,
    }


class Pump:
    """One end and its pool, served until something has happened."""

    def __init__(self, side: str, reported: dict[str, str], **settings: Any) -> None:
        connector: Any = registry.connector("rabbitmq")
        self.pool: Any = connector.sources() if side == "source" else connector.targets()
        self.end: Any = (self.pool.source if side == "source" else self.pool.target)(1, reported, **settings)
        self.events: list[Any] = []
        self.end.open()

    def wait(self, is_done: Callable[[list[Any]], object]) -> list[Any]:
        limit = time.monotonic() + WAIT_SECONDS
        while not is_done(self.events):
            assert time.monotonic() < limit, self.events
            now = time.monotonic()
            poll = select.poll()
            for descriptor, interest in self.pool.descriptors():
                poll.register(descriptor, interest)
            due = min(self.pool.deadline(now), self.end.deadline(now)) - now
            ready = dict(poll.poll(max(0.0, min(due, 0.1)) * 1000))
            self.pool.service(ready, time.monotonic())
            self.events += self.end.poll(time.monotonic())
            self.pool.flush()
        found, self.events = self.events, []
        return found

    def wait_for(self, kind: type) -> Any:
        return next(
            each for each in self.wait(lambda events: any(type(each) is kind for each in events)) if type(each) is kind
        )

    def arrived(self, count: int) -> list[tuple[int, bytes]]:
        found: list[tuple[int, bytes]] = []

        def is_done(events: Sequence[Any]) -> bool:
            found[:] = [
                pair
                for each in events
                if type(each) is Arrived
                for pair in zip(each.positions, each.payloads, strict=True)
            ]
            return len(found) >= count

        self.wait(is_done)
        return found

    def close(self) -> None:
        self.end.close()
        self.pool.close()


@pytest.fixture
def pump() -> Iterator[Callable[..., Pump]]:
    made: list[Pump] = []

    def make(*arguments: Any, **settings: Any) -> Pump:
        made.append(Pump(*arguments, **settings))
        return made[-1]

    yield make
    for each in made:
        each.close()


def opened(pump: Callable[..., Pump], server: RabbitServer, entity: str, **others: str) -> Pump:
    made = pump("target", options(server, entity, **others))
    made.wait(lambda events: any(type(each) is Granted for each in events))
    return made


def outcomes(events: Sequence[Any]) -> dict[int, Any]:
    return {at: each.refusal for each in events if type(each) is Outcome for at in range(each.first, each.last + 1)}


def payloads(*keys: str, subject: str = "") -> list[bytes]:
    return [
        section.encode_message(b"body", properties={"message_id": key} | ({"subject": subject} if subject else {}))
        for key in keys
    ]


def taken(server: RabbitServer, queue: str, host: str = "/") -> list[Record]:
    with RabbitClient(server.port, host) as client:
        return client.take(queue, TAKEN)


def exchange(server: RabbitServer, name: str, kind: str, **bindings: str) -> str:
    server.call("PUT", f"exchanges/%2F/{name}", {"type": kind, "durable": True})
    for queue, key in bindings.items():
        server.queue(queue)
        server.call("POST", f"bindings/%2F/e/{name}/q/{queue}", {"routing_key": key})
    return name


# ---- targets


def test_an_unroutable_message_is_refused_and_the_others_are_taken(
    server: RabbitServer, pump: Callable[..., Pump]
) -> None:
    exchange(server, "ex-direct", "direct", routed="in")
    target = opened(pump, server, "ex-direct", entity_type="topic")
    mixed = [
        payloads("a", subject="in"),
        payloads("b", subject="nowhere"),
        payloads("c", subject="in"),
        payloads("b", subject="nowhere"),
    ]
    target.end.send(Send([each[0] for each in mixed]))
    found = outcomes(target.wait(lambda events: len(outcomes(events)) == 4))
    assert [found[at] is None for at in range(4)] == [True, False, True, False]
    assert (found[1].kind, found[1].condition, found[1].reason) == (RefusalKind.UNCLEAR, "312", "Unroutable")
    assert "exchange 'ex-direct' has no queue for routing key 'nowhere'" in found[1].description
    assert [key_of(to_message(each)) for each in taken(server, "routed")] == ["a", "c"]


def test_routing_keys_come_from_the_option_the_source_or_the_subject(
    server: RabbitServer, pump: Callable[..., Pump]
) -> None:
    exchange(server, "ex-topic", "topic", **{"q-fixed": "fixed.#", "q-own": "own.#", "q-subject": "subject.#"})
    record = Record(b"x", props.write(Properties(delivery_mode=2, type=b"subject.x")), "elsewhere", "own.x")
    target = opened(pump, server, "ex-topic", entity_type="topic")
    target.end.send(Send([to_message(record), *payloads("s", subject="subject.y")]))
    target.wait(lambda events: len(outcomes(events)) == 2)
    fixed = opened(pump, server, "ex-topic", entity_type="topic", routing_key="fixed.z")
    fixed.end.send(Send([to_message(record)]))
    fixed.wait(lambda events: len(outcomes(events)) == 1)
    assert [[each.routing_key for each in taken(server, name)] for name in ("q-own", "q-subject", "q-fixed")] == [
        ["own.x"],
        ["subject.y"],
        ["fixed.z"],
    ]


def test_headers_route_and_come_back_with_their_types(server: RabbitServer, pump: Callable[..., Pump]) -> None:
    server.call("PUT", "exchanges/%2F/ex-headers", {"type": "headers", "durable": True})
    server.queue("q-headers")
    server.call(
        "POST", "bindings/%2F/e/ex-headers/q/q-headers", {"routing_key": "", "arguments": {"x-match": "all", "n": 5}}
    )
    headers = (
        ("n", b"I", struct.pack(">i", 5)),
        ("at", b"T", struct.pack(">Q", 1_700_000_000)),
        ("d", b"D", b"\2\0\0\0\7"),
    )
    nested = ("f", b"F", table.encode([("a", b"t", b"\1")]))
    found = Properties(
        content_type=b"text/plain", headers=(*headers, nested), delivery_mode=2, priority=4, correlation_id=b"c", reply_to=b"r",
        expiration=b"600000", message_id=b"m", timestamp=1_700_000_000, type=b"t", user_id=USER.encode(), app_id=b"app",
    )  # fmt: skip
    with RabbitClient(server.port) as client:
        client.publish([Record(b"body", props.write(found), "", server.queue("q-from", "quorum"))])
    source = pump("source", options(server, "q-from"))
    source.wait_for(SourceOpened)
    source.end.grant(10)
    ((position, payload),) = source.arrived(1)
    target = opened(pump, server, "ex-headers", entity_type="topic")
    target.end.send(Send([payload]))
    assert outcomes(target.wait(outcomes)) == {0: None}
    source.end.settle(position, position)
    (back,) = taken(server, "q-headers")
    assert props.read(back.properties) == found


def test_a_full_queue_blocks(server: RabbitServer, pump: Callable[..., Pump]) -> None:
    server.queue("q-full", max_length=1, overflow="reject-publish")
    target = opened(pump, server, "q-full")
    target.end.send(Send(payloads("a", "b", "c")))
    found = outcomes(target.wait(lambda events: len(outcomes(events)) == 3))
    refused = [each for each in found.values() if each is not None]
    assert refused
    assert {each.kind for each in refused} == {RefusalKind.BLOCKED}
    assert len(taken(server, "q-full")) == 3 - len(refused)


def test_the_largest_message_is_learned_from_a_refusal(server: RabbitServer, pump: Callable[..., Pump]) -> None:
    """RabbitMQ closes the channel for one message that is too large: it is refused for itself from then on."""
    target = opened(pump, server, server.queue("q-large"))
    large = section.encode_message(b"x" * (LARGEST_BYTES + 1))
    target.end.send(Send([*payloads("a"), large]))
    lost = target.wait_for(Lost)
    assert lost.refusal.kind is RefusalKind.UNKNOWN
    target.end.open()
    reported = target.wait(lambda events: any(type(each) is Granted for each in events))
    assert next(each for each in reported if type(each) is Opened).message_bytes > LARGEST_BYTES
    target.end.send(Send([large, *payloads("b")]))
    found = outcomes(target.wait(lambda events: len(outcomes(events)) == 2))
    assert (found[0].kind, found[0].reason, found[1]) == (RefusalKind.MESSAGE, "MessageTooLarge", None)


def test_properties_that_no_frame_holds_are_refused(server: RabbitServer, pump: Callable[..., Pump]) -> None:
    target = opened(pump, server, server.queue("q-properties"))
    target.end.send(Send([section.encode_message(b"x", application_properties={"a": "x" * 200_000}), *payloads("b")]))
    found = outcomes(target.wait(lambda events: len(outcomes(events)) == 2))
    assert (found[0].kind, found[0].reason, found[1]) == (RefusalKind.MESSAGE, "MessageTooLarge", None)


def test_a_blocked_connection_takes_nothing_and_loses_nothing(server: RabbitServer, pump: Callable[..., Pump]) -> None:
    """The broker has a memory alarm: credit is taken back, nothing times out, and then everything continues."""
    target = opened(pump, server, server.queue("q-blocked"), stall_seconds="1")
    server.control("set_vm_memory_high_watermark", "0.00000001")
    try:
        target.end.send(Send(payloads("a")))
        target.wait(lambda events: any(type(each) is Granted and each.credit == 0 for each in events))
        limit = time.monotonic() + 1.5
        target.wait(lambda events: time.monotonic() > limit)
    finally:
        server.control("set_vm_memory_high_watermark", "absolute", "2GB")
    found = target.wait(
        lambda events: outcomes(events) and any(type(each) is Granted and each.credit for each in events)
    )
    assert outcomes(found) == {0: None}
    assert not any(type(each) is Lost for each in found)
    assert len(taken(server, "q-blocked")) == 1


def test_a_route_to_a_blocked_node_sends_nothing_again(
    server: RabbitServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It connected again whenever its target's time was over, and the node read each time what was published before."""
    seconds = 1.0
    server.queue("q-alarm")
    with namespace(tmp_path / "data", config="queues: {q: {lock_duration: 1m}}") as source:
        monkeypatch.setenv("SOURCE", source.connection_string)
        route = RouteSpec(
            name="q",
            source=End("servicebus", "a", {"connection": "env:SOURCE", "entity": "q"}),
            target=End("rabbitmq", "b", options(server, "q-alarm")),
            target_seconds=seconds,
        )
        with carried(tmp_path, [route]):
            server.control("set_vm_memory_high_watermark", "0.00000001")
            try:
                with connected(source, "q") as client:
                    Sender(client, "q").wait_ready().send_all(payloads(*(f"k/{each}" for each in range(100))))
                time.sleep(5 * seconds)
            finally:
                server.control("set_vm_memory_high_watermark", "absolute", "2GB")
            limit = time.monotonic() + WAIT_SECONDS
            while server.messages("q-alarm") < 100:
                assert time.monotonic() < limit, server.state()
                time.sleep(0.2)
        found = [key_of(to_message(each)) for each in taken(server, "q-alarm")]
    assert found == [f"k/{each}" for each in range(100)]


# ---- access


@pytest.mark.parametrize(
    ("others", "texts"),
    [
        ({"virtual_host": "nowhere"}, ("530", "vhost nowhere not found", "correct the virtual host")),
        ({"username": "nobody"}, ("403", "ACCESS_REFUSED", "password")),
        ({"entity": "q-nowhere"}, ("404", "no queue 'q-nowhere'", "create it, or correct the name")),
    ],
)
def test_a_refusal_is_reported_in_rabbitmqs_words(
    server: RabbitServer, pump: Callable[..., Pump], others: dict[str, str], texts: tuple[str, ...]
) -> None:
    server.queue("q-enter")
    source = pump("source", {**options(server, "q-enter"), **others})
    lost = source.wait_for(SourceLost)
    target = pump("target", {**options(server, "q-enter"), **others})
    refusal = target.wait_for(Lost).refusal
    assert lost.is_fatal
    assert refusal.kind is RefusalKind.FATAL
    for reported in (lost.text, refusal.description):
        assert all(text in reported for text in texts), reported
        assert PASSWORD not in reported


def test_a_user_without_the_right_to_write(server: RabbitServer, pump: Callable[..., Pump]) -> None:
    server.queue("q-right")
    server.call("PUT", "users/reader", {"password": PASSWORD, "tags": ""})
    server.call("PUT", "permissions/%2F/reader", {"configure": "^$", "write": "^$", "read": ".*"})
    target = pump("target", options(server, "q-right", username="reader"))
    target.wait(lambda events: any(type(each) is Granted for each in events))
    target.end.send(Send(payloads("a")))
    refusal = target.wait_for(Lost).refusal
    assert refusal.kind is RefusalKind.FATAL
    assert "permissions (configure, write, read)" in refusal.description


def test_virtual_hosts_are_apart(server: RabbitServer, pump: Callable[..., Pump]) -> None:
    server.call("PUT", "vhosts/other")
    server.call("PUT", f"permissions/other/{USER}", {"configure": ".*", "write": ".*", "read": ".*"})
    server.queue("q-host", host="other")
    target = opened(pump, server, "q-host", virtual_host="other")
    target.end.send(Send(payloads("a")))
    target.wait(outcomes)
    assert len(taken(server, "q-host", "other")) == 1


# ---- sources


def test_an_ordered_source_has_the_queue_for_itself(server: RabbitServer, pump: Callable[..., Pump]) -> None:
    first = pump("source", options(server, server.queue("q-alone")))
    first.wait_for(SourceOpened)
    first.end.grant(1)
    second = pump("source", options(server, "q-alone"))
    second.wait_for(SourceOpened)
    with RabbitClient(server.port) as client:
        client.publish([to_record(message("k"))._replace(routing_key="q-alone")])
    first.arrived(1)
    second.end.grant(1)
    lost = second.wait_for(SourceLost)
    assert not lost.is_fatal
    assert "exclusive" in lost.text
    assert "consumer=shared" in lost.text


def test_a_rejected_message_goes_to_the_dead_letter_exchange(server: RabbitServer, pump: Callable[..., Pump]) -> None:
    exchange(server, "dlx", "fanout", **{"q-dlx-dead": ""})
    server.queue("q-dlx", "quorum", dead_letter_exchange="dlx")
    with RabbitClient(server.port) as client:
        client.publish([to_record(message(key))._replace(routing_key="q-dlx") for key in ("a", "b")])
    source = pump("source", options(server, "q-dlx", dead_letter_exchange="true"))
    source.wait_for(SourceOpened)
    source.end.grant(5)
    (first, _), (second, _) = source.arrived(2)
    source.end.settle(first, first, Disposition("dead-letter", "Bad", "why"))
    source.end.settle(second, second)
    source.wait(lambda events: server.messages("q-dlx") == 0 and server.messages("q-dlx-dead") == 1)
    assert [key_of(to_message(each)) for each in taken(server, "q-dlx-dead")] == ["a"]


def test_nothing_is_rejected_where_nothing_says_that_there_is_a_dead_letter_exchange(
    server: RabbitServer, pump: Callable[..., Pump]
) -> None:
    """source I4: RabbitMQ would drop it."""
    server.queue("q-none")
    with RabbitClient(server.port) as client:
        client.publish([to_record(message("a"))._replace(routing_key="q-none")])
    source = pump("source", options(server, "q-none"))
    source.wait_for(SourceOpened)
    source.end.grant(5)
    ((position, _),) = source.arrived(1)
    source.end.settle(position, position, Disposition("dead-letter", "Bad", "why"))
    lost = source.wait_for(SourceLost)
    assert lost.is_fatal
    assert "name a queue for dead_letters" in lost.text
    source.wait(lambda events: server.messages("q-none") == 1)
    source.wait(lambda events: server.call("GET", "queues/%2F/q-none") and taken(server, "q-none"))


def test_a_dead_letter_queue_that_vanished_loses_nothing(server: RabbitServer, pump: Callable[..., Pump]) -> None:
    server.queue("q-gone")
    server.queue("q-gone-dead")
    with RabbitClient(server.port) as client:
        client.publish([to_record(message("a"))._replace(routing_key="q-gone")])
    source = pump("source", options(server, "q-gone", dead_letters="q-gone-dead"))
    source.wait_for(SourceOpened)
    source.end.grant(5)
    ((position, _),) = source.arrived(1)
    server.call("DELETE", "queues/%2F/q-gone-dead")
    source.end.settle(position, position, Disposition("dead-letter", "Bad", "why"))
    lost = source.wait_for(SourceLost)
    assert "q-gone-dead" in lost.text
    server.queue("q-gone-dead")
    source.end.open()
    source.wait_for(SourceOpened)
    source.end.grant(5)
    ((position, _),) = source.arrived(1)
    source.end.settle(position, position, Disposition("dead-letter", "Bad", "why"))
    source.wait(lambda events: server.messages("q-gone-dead") == 1)
    (dead,) = taken(server, "q-gone-dead")
    reasons = [
        table.value_of(kind, raw) for name, kind, raw in props.read(dead.properties).headers if name == REASON_HEADER
    ]
    assert reasons == ["Bad"]


def test_a_queue_is_emptied_while_the_node_accepts_no_dead_letters(
    server: RabbitServer, pump: Callable[..., Pump]
) -> None:
    """RabbitMQ reads nothing more from a connection that publishes while it is short of memory or disk: no acknowledgement either, and a queue
    whose messages fill the disk could not be emptied.
    """
    server.queue("q-short")
    server.queue("q-short-dead")
    with RabbitClient(server.port) as client:
        client.publish([to_record(message(key))._replace(routing_key="q-short") for key in "abcde"])
    source = pump("source", options(server, "q-short", dead_letters="q-short-dead"))
    source.wait_for(SourceOpened)
    source.end.grant(2)
    (first, _), (second, _) = source.arrived(2)
    server.control("set_vm_memory_high_watermark", "0.00000001")
    try:
        source.end.settle(
            first, first, Disposition("dead-letter", "Bad", "why")
        )  # RabbitMQ accepts one, and is blocked then
        assert "accepts no dead letters" in source.wait_for(Noted).text
        source.end.settle(second, second, Disposition("dead-letter", "Bad", "why"))
        source.end.grant(3)
        for position, _ in source.arrived(3):
            source.end.settle(position, position)
        source.wait(lambda events: server.messages("q-short") == 1)
    finally:
        server.control("set_vm_memory_high_watermark", "absolute", "2GB")
    assert source.wait_for(Noted) == Noted("")
    source.wait(lambda events: server.messages("q-short") == 0)
    assert [key_of(to_message(each)) for each in taken(server, "q-short-dead")] == ["a", "b"]


@pytest.mark.parametrize("is_stored", [True, False])
def test_a_source_that_is_closed_waits_for_the_confirm_of_a_dead_letter(
    server: RabbitServer, pump: Callable[..., Pump], is_stored: bool
) -> None:
    """Each run that ends there would set the message aside again."""
    queue, dead = server.queue(f"q-last-{is_stored}"), server.queue(f"q-last-{is_stored}-dead")
    with RabbitClient(server.port) as client:
        client.publish([to_record(message(key))._replace(routing_key=queue) for key in "ab"])
    source = pump("source", options(server, queue, dead_letters=dead))
    source.wait_for(SourceOpened)
    source.end.grant(5)
    (first, _), (last, _) = source.arrived(2)
    if not is_stored:  # RabbitMQ accepts one, and is blocked then
        server.control("set_vm_memory_high_watermark", "0.00000001")
    try:
        source.end.settle(first, last, Disposition("dead-letter", "Bad", "why"))
        source.end.close()
        source.wait(lambda events: source.end.has_left)
        source.pool.close()
        assert server.messages(queue) == (0 if is_stored else 1)
    finally:
        server.control("set_vm_memory_high_watermark", "absolute", "2GB")
    if is_stored:
        assert [key_of(to_message(each)) for each in taken(server, dead)] == ["a", "b"]


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_what_is_given_back_comes_again_in_order(server: RabbitServer, pump: Callable[..., Pump], kind: str) -> None:
    queue = server.queue(f"q-back-{kind}", kind)
    with RabbitClient(server.port) as client:
        client.publish([to_record(message(f"k/{number}"))._replace(routing_key=queue) for number in range(50)])
    source = pump("source", options(server, queue))
    source.wait_for(SourceOpened)
    source.end.grant(20)
    came = source.arrived(20)
    source.end.settle(came[0][0], came[4][0])
    source.end.drain()
    source.end.release(came[12][0], came[19][0])  # in two parts, the later first
    source.end.release(came[5][0], came[11][0])
    source.end.grant(100)
    again = source.arrived(45)
    assert [key_of(payload) for _, payload in again] == [f"k/{number}" for number in range(5, 50)]


def publish(server: RabbitServer, queue: str, *keys: str, headers: Sequence[str] = ()) -> None:
    def record(key: str) -> Record:
        made = to_record(message(key))
        if headers:
            found = props.read(made.properties)
            own = tuple((name, *table.field_of(name)) for name in headers)
            made = made._replace(properties=props.write(found._replace(headers=(*own, *found.headers))))
        return made._replace(routing_key=queue)

    with RabbitClient(server.port) as client:
        client.publish([record(key) for key in keys])


def cut(source: Pump) -> None:
    """Loses the connection, and connects again."""
    source.end.connection._socket.shutdown(socket.SHUT_RDWR)
    source.wait_for(SourceLost)
    source.end.open()
    source.wait_for(SourceOpened)


def test_what_is_settled_out_of_order_keeps_the_channel(server: RabbitServer, pump: Callable[..., Pump]) -> None:
    """unacked I2: what was set aside is acknowledged after its confirm, behind others."""
    queue = server.queue("q-gaps")
    publish(server, queue, *"abcde")
    source = pump("source", options(server, queue))
    source.wait_for(SourceOpened)
    source.end.grant(5)
    came = [position for position, _ in source.arrived(5)]
    for index in (1, 3, 0, 2, 4):
        source.end.settle(came[index], came[index])
    assert not source.wait(lambda events: events or server.messages(queue) == 0)


@pytest.mark.parametrize("ordered", [True, False])
def test_what_comes_too_late_for_a_source_that_is_read_once_stays_untouched(
    server: RabbitServer, pump: Callable[..., Pump], ordered: bool
) -> None:
    """present I1. A quorum queue drops what is given back too often, and an ordered source lost the tags of what was under way."""
    queue = server.queue(f"q-late-{ordered}", "quorum", delivery_limit=2)
    publish(server, queue, *"abc")
    source = pump("source", options(server, queue), ordered=ordered, only_present=True)
    source.wait_for(SourceOpened)
    source.end.grant(2)
    first = source.arrived(2)
    publish(server, queue, *"defg")
    source.end.grant(10)
    found = source.wait(lambda events: any(type(each) is Exhausted for each in events))
    came = [*first, *((at, data) for each in found if type(each) is Arrived for at, data in zip(*each, strict=True))]
    assert [key_of(payload) for _, payload in came] == ["a", "b", "c"]
    until = time.monotonic() + 0.5
    assert not source.wait(lambda events: time.monotonic() > until)
    source.end.settle(came[0][0], came[2][0])
    source.end.close()
    source.wait(lambda events: source.end.has_left and server.messages(queue) == 4)
    assert [key_of(to_message(each)) for each in taken(server, queue)] == ["d", "e", "f", "g"]


def test_a_source_that_is_read_once_waits_for_what_the_broker_holds_for_a_connection_that_it_has_not_ended(
    server: RabbitServer, pump: Callable[..., Pump]
) -> None:
    """present I3: as over a network that hangs for one side; the queue is not empty, though nothing in it is ready."""
    queue = server.queue("q-stall")
    publish(server, queue, *"abc")
    source = pump("source", options(server, queue), ordered=False, only_present=True)
    source.wait_for(SourceOpened)
    source.end.grant(1)
    [(first, _)] = source.arrived(1)
    source.wait(lambda events: len(source.end._ready) == 2)
    source.end.settle(first, first)
    source.pool.flush()
    connection = source.end.connection
    kept = os.dup(connection.fileno())  # what keeps the broker from noticing that it is closed
    try:
        connection.lose(ConnectionLostError("nothing came"))
        source.wait_for(SourceLost)
        source.end.open()
        source.wait_for(SourceOpened)
        source.end.grant(10)
        until = time.monotonic() + 2.0
        assert not source.wait(lambda events: events or time.monotonic() > until)
    finally:
        os.close(kept)
    found = source.wait(lambda events: any(type(each) is Exhausted for each in events))
    came = [payload for each in found if type(each) is Arrived for payload in each.payloads]
    assert [key_of(payload) for payload in came] == ["b", "c"]


@pytest.mark.parametrize("only_present", [False, True])
def test_what_was_settled_while_the_connection_was_away_is_acknowledged_without_credit(
    server: RabbitServer, pump: Callable[..., Pump], only_present: bool
) -> None:
    queue = server.queue(f"q-away-{only_present}")
    publish(server, queue, *"abc")
    source = pump("source", options(server, queue), only_present=only_present)
    source.wait_for(SourceOpened)
    source.end.grant(10)
    came = source.arrived(3)
    source.end.connection._socket.shutdown(socket.SHUT_RDWR)
    source.wait_for(SourceLost)
    source.end.settle(came[0][0], came[2][0])
    source.end.open()
    source.wait_for(SourceOpened)
    assert not [each for each in source.wait(lambda events: server.messages(queue) == 0) if type(each) is Arrived]


def test_a_source_that_ends_waits_for_what_was_settled_while_the_connection_was_away(
    server: RabbitServer, pump: Callable[..., Pump]
) -> None:
    """Otherwise the next source would be given it, and move it again."""
    queue = server.queue("q-owed")
    publish(server, queue, *"abc")
    source = pump("source", options(server, queue))
    source.wait_for(SourceOpened)
    source.end.grant(10)
    came = source.arrived(3)
    source.end.connection._socket.shutdown(socket.SHUT_RDWR)
    source.wait_for(SourceLost)
    source.end.settle(came[0][0], came[1][0])
    source.end.open()
    source.wait_for(SourceOpened)
    source.end.close()
    source.wait(lambda events: source.end.has_left)
    assert [key_of(to_message(each)) for each in taken(server, queue)] == ["c"]


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_what_is_delivered_again_is_known_whatever_the_broker_does_to_its_headers(
    server: RabbitServer, pump: Callable[..., Pump], kind: str
) -> None:
    """fingerprint I1"""
    queue = server.queue(f"q-headers-{kind}", kind)
    publish(server, queue, "a", headers=("zebra", "ant", "mule"))
    source = pump("source", options(server, queue))
    source.wait_for(SourceOpened)
    source.end.grant(10)
    ((position, _),) = source.arrived(1)
    cut(source)
    source.end.grant(10)
    source.wait(lambda events: not source.end._delivered.is_waiting or events)
    source.end.settle(position, position)
    found = source.wait(lambda events: server.messages(queue) == 0)
    assert not [each for each in found if type(each) is Arrived]


def test_a_queue_with_a_single_active_consumer_is_read_in_order(
    server: RabbitServer, pump: Callable[..., Pump]
) -> None:
    queue = server.queue("q-single", "quorum", single_active_consumer=True)
    publish(server, queue, "a", "b")
    source = pump("source", options(server, queue))
    source.wait_for(SourceOpened)
    source.end.grant(10)
    assert [key_of(payload) for _, payload in source.arrived(2)] == ["a", "b"]


def test_a_stream_is_refused(server: RabbitServer, pump: Callable[..., Pump]) -> None:
    """A stream keeps what is acknowledged, and gives a consumer only what comes after it."""
    queue = server.queue("q-stream", "stream")
    publish(server, queue, "a")
    source = pump("source", options(server, queue))
    source.wait_for(SourceOpened)
    source.end.grant(10)
    lost = source.wait_for(SourceLost)
    assert lost.is_fatal
    assert "stream" in lost.text


def test_memory_is_bounded_by_the_bytes_that_are_kept(server: RabbitServer, pump: Callable[..., Pump]) -> None:
    """Messages beyond the credit stay at the broker, though the prefetch would let them come."""
    queue = server.queue("q-bytes")
    with RabbitClient(server.port) as client:
        client.publish([Record(b"x" * 1_000_000, b"\0\0", "", queue)] * 30)
    source = pump("source", options(server, queue))
    source.wait_for(SourceOpened)
    source.end.grant(1)
    ((position, _),) = source.arrived(1)
    until = time.monotonic() + 1.0
    source.wait(lambda events: time.monotonic() > until)
    assert source.end._ready.nbytes < 8 << 20
    source.end.settle(position, position)
    source.end.grant(100)
    for number, _ in source.arrived(29):
        source.end.settle(number, number)
    source.wait(lambda events: server.messages(queue) == 0)


# ---- a federation


FILE = """isthmus: 1
namespaces:
  ewr: {{kind: rabbitmq, host: "127.0.0.1:{port}", username: {user}, password: env:RABBIT_PASSWORD, management: "http://127.0.0.1:{management}"}}
  jfk: {{kind: rabbitmq, host: "127.0.0.1:{port}", virtual_host: jfk, username: {user}, password: env:RABBIT_PASSWORD, management: "http://127.0.0.1:{management}"}}
tasks:
  flights: {{pattern: copy, topic: flights, source: ewr, target: jfk}}
  orders: {{pattern: move, queue: orders, source: ewr, target: jfk}}
"""


@pytest.fixture
def file(server: RabbitServer, tmp_path: Path) -> Path:
    server.call("PUT", "vhosts/jfk")
    server.call("PUT", f"permissions/jfk/{USER}", {"configure": ".*", "write": ".*", "read": ".*"})
    path = tmp_path / "federation.yaml"
    path.write_text(FILE.format(port=server.port, management=server.management_port, user=USER))
    return path


def bind_boards(server: RabbitServer) -> None:
    """Binds the queue `boards` to the topic exchange `flights`, once more where it is bound.

    A topic exchange of a node that was killed may route nothing over a binding that the node still lists, until the queue is bound again
    (RabbitMQ's issues 2079, 4236 and 5075). What the route publishes meanwhile is returned, and waits for the binding.
    """
    if server.call("GET", "bindings/jfk/e/flights/q/boards"):
        server.call("DELETE", f"bindings/jfk/e/flights/q/boards/{quote('#', '')}")
    server.call("POST", "bindings/jfk/e/flights/q/boards", {"routing_key": "#"})


def test_a_federation_is_applied_and_carried_through_kills_of_the_broker(
    server: RabbitServer, file: Path, tmp_path: Path
) -> None:
    """plan and apply make queues, exchanges and bindings; then messages move while the node is killed and starts again: lost 0."""
    federation = load(file)
    with Administrations(federation) as administrations:
        found = plan(federation, administrations.observe())
        assert not found.faults
        assert administrations.apply(found).failed is None
        assert plan(federation, administrations.observe()).changes == ()
    server.call("PUT", "queues/jfk/boards", {"durable": True})
    bind_boards(server)
    run = HostedRun(file.absolute(), tmp_path / "run")
    published: list[str] = []
    seen: dict[str, list[str]] = {"orders": [], "boards": []}
    returned: list[Record] = []
    ended = threading.Event()

    def publish() -> None:
        number = 0
        while not ended.is_set():
            if number > min(map(len, seen.values())) + TAKEN:
                time.sleep(0.05)
                continue
            keys = [f"k/{each}" for each in range(number, number + 20)]
            try:
                with RabbitClient(server.port) as client:
                    client.publish([to_record(message(key))._replace(routing_key="orders") for key in keys])
                    client.publish(
                        [to_record(message(key))._replace(exchange="flights", routing_key="a.b") for key in keys]
                    )
                    returned.extend(client.returned)
            except (OSError, EOFError):
                time.sleep(0.1)
                continue  # these are published again: no confirm came
            published.extend(keys)
            number += 20
            time.sleep(0.02)

    def take() -> None:
        for queue, keys in seen.items():
            try:
                with RabbitClient(server.port, "jfk") as client:
                    for each in client.each(queue, TAKEN):
                        keys.append(key_of(to_message(each)))
            except (OSError, EOFError):
                time.sleep(0.1)

    def story() -> str:
        missing = {name: sorted(set(published) - set(keys)) for name, keys in seen.items()}
        counts = {name: (len(set(keys)), missing[name][:1], missing[name][-1:]) for name, keys in seen.items()}
        publishing = f"{len(published)} published, {len(returned)} returned, alive: {publisher.is_alive()}, ended: {ended.is_set()}"
        with RabbitClient(server.port, "jfk") as client:
            client.publish([to_record(message("k/-1"))._replace(exchange="flights", routing_key="a.b")])
            probe = f"bindings {server.call('GET', 'bindings/jfk')}; a message of its own came back: {client.returned}"
        return "\n".join((run.log()[-2000:], str(counts), publishing, probe, server.state()))

    def wait(is_done: Callable[[], bool]) -> None:
        limit = time.monotonic() + WAIT_SECONDS
        while not is_done():
            assert time.monotonic() < limit, story()
            assert run.is_alive()
            take()
            time.sleep(0.1)

    publisher = threading.Thread(target=publish)
    publisher.start()
    try:
        for _ in range(2):
            before = len(seen["orders"])
            wait(lambda: len(seen["orders"]) > before + 40)  # noqa: B023 - called within the round
            server.stop(signal.SIGKILL)
            server.start()
            bind_boards(server)
        before = len(seen["boards"])
        wait(lambda: len(seen["boards"]) > before + 40)
        ended.set()
        publisher.join()
        wait(lambda: all(set(published) <= set(keys) for keys in seen.values()))
    finally:
        ended.set()
        publisher.join()
        run.end()
    for keys in seen.values():
        first = [int(key[2:]) for key in dict.fromkeys(keys)]
        assert first == sorted(first)


def test_looks_change_nothing(server: RabbitServer) -> None:
    server.queue("q-look")
    with RabbitClient(server.port) as client:
        client.publish([to_record(message("a"))._replace(routing_key="q-look")])
    reported = {name: value for name, value in options(server, "").items() if name != "entity"}
    SYSTEM.check(reported, "q-look", reads=True)
    assert SYSTEM.waiting(reported, "q-look", "").messages == 1
    assert SYSTEM.identity(reported) == ""
    with pytest.raises(EntityNotFoundError, match="q-nothing"):
        SYSTEM.check(reported, "q-nothing", reads=True)


def test_an_exchange_that_was_made_again_has_no_binding_to_the_queue_of_a_task(server: RabbitServer) -> None:
    reported = {name: value for name, value in options(server, "").items() if name != "entity"}
    assert SYSTEM.is_bound(reported, "ex-again", "q-again") is None
    reported["management"] = f"http://127.0.0.1:{server.management_port}"
    exchange(server, "ex-again", "topic", **{"q-again": "#"})
    assert SYSTEM.is_bound(reported, "ex-again", "q-again")
    server.call("DELETE", "exchanges/%2F/ex-again")
    assert SYSTEM.is_bound(reported, "ex-again", "q-again") is False
    exchange(server, "ex-again", "topic")
    assert SYSTEM.is_bound(reported, "ex-again", "q-again") is False
    exchange(server, "ex-before", "fanout")
    server.call("POST", "bindings/%2F/e/ex-again/e/ex-before", {"routing_key": "#", "arguments": {}})
    assert SYSTEM.is_bound(reported, "ex-again", "q-again") is None, "it may lead to the queue"
    reported["management"] = "http://127.0.0.1:1"
    with pytest.raises(NamespaceUnreachableError):
        SYSTEM.is_bound(reported, "ex-again", "q-again")


def test_a_run_warns_of_an_exchange_that_was_made_again_until_it_is_applied(
    server: RabbitServer, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    federation = load(file)

    def apply() -> None:
        with Administrations(federation) as administrations:
            assert administrations.apply(plan(federation, administrations.observe())).failed is None

    def warned(now: float) -> list[str]:
        caplog.clear()
        with NamespaceClients(federation) as clients:
            watch.query(clients, now)
        return caplog.messages

    watch = BindingWatch(routes(federation))
    apply()
    assert warned(100.0) == []
    server.call("DELETE", "exchanges/%2F/flights")
    exchange(server, "flights", "topic")
    (text,) = warned(200.0)
    assert "queue isthmus.flights.jfk is not bound to exchange flights at ewr" in text
    apply()
    assert warned(300.0) == []
    server.call("DELETE", "exchanges/%2F/flights")
    assert len(warned(400.0)) == 1
    apply()


def test_a_plan_names_what_the_management_says(
    server: RabbitServer, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RABBIT_PASSWORD", "hunter2-wrong")
    with Administrations(read(file.read_text())) as administrations, pytest.raises(ConfigError) as caught:
        administrations.observe()
    assert "401" in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert os.environ["RABBIT_PASSWORD"] == "hunter2-wrong"
