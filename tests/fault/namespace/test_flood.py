"""Attackers without a token: which resources they can use up at a served namespace, and those of others.

Loopback only; the limits of the namespace are small, so that a few hundred connections reach them.
"""

from __future__ import annotations

import http.client
import json
import os
import resource
import signal
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import isthmus.testing.namespace as served
from harness.client.fault_client import AnsweredReceiver, Raw, connected, make_message, works
from isthmus.amqp import LinkAttached, LinkDetached, Transfers, section
from isthmus.amqp.frame import AMQP_HEADER, SASL_HEADER, frame
from isthmus.amqp.performative import Open, Source, Target, Transfer
from isthmus.amqp.types import Long, Symbol
from isthmus.broker.net.log_sample import LINES
from isthmus.broker.security.sas import make_token
from isthmus.connectors.servicebus.connection_string import ConnectionString
from isthmus.testing.namespace import NamespaceProcess, namespace
from isthmus.transport import Sender

FILES = 120
CONFIG = """
limits: {max_connections: 5, connection_idle_timeout: 1s}
queues: {orders: {}, big: {max_message_size_in_kilobytes: 102400}}
event_hubs: {clicks: {partition_count: 1}}
"""
OPEN = frame(0, Open("x", "host", 65536, 100))
UPGRADE = (
    b"GET /$servicebus/websocket HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    b"Sec-WebSocket-Protocol: AMQPWSB10\r\n\r\n"
)
FLOODS = {
    "no bytes": b"",
    "amqp": b"AMQP",
    "header": AMQP_HEADER,
    "sasl": SASL_HEADER,
    "open": AMQP_HEADER + OPEN,
    "tls begun": b"\x16\x03\x01\x02\x00\x01\x00",
    "half a request": b"GET / HTTP/1.1\r\n",
    "idle http": b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n",
    "refused http": b"GET /orders HTTP/1.1\r\nHost: x\r\nAuthorization: SharedAccessSignature x\r\n\r\n",
    "body that does not come": b"PUT /orders HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n",
    "websocket": UPGRADE,
}


@pytest.fixture(scope="module")
def ns(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NamespaceProcess]:
    with pytest.MonkeyPatch.context() as patch:
        few = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({FILES}, {FILES})); {served._COMMAND}"
        patch.setattr(served, "_COMMAND", few)
        with namespace(tmp_path_factory.mktemp("flood") / "data", config=CONFIG) as running:
            yield running


def open_files(ns: NamespaceProcess) -> int:
    return len(os.listdir(f"/proc/{ns.pid}/fd"))


def resident_bytes(ns: NamespaceProcess) -> int:
    return int(Path(f"/proc/{ns.pid}/statm").read_text().split()[1]) * resource.getpagesize()


def key_of(ns: NamespaceProcess) -> tuple[str, str]:
    parsed = ConnectionString.parse(ns.connection_string)
    assert parsed.key is not None
    return parsed.key_name, parsed.key.reveal()


def token_of(ns: NamespaceProcess) -> str:
    return make_token("sb://localhost/", *key_of(ns), int(time.time() * 1000) + 3_600_000)


@pytest.mark.parametrize("kind", FLOODS)
def test_clients_without_a_token_take_neither_descriptors_nor_places(ns: NamespaceProcess, kind: str) -> None:
    before = len(ns.log())
    with ExitStack() as stack:
        for _ in range(FILES):
            stream = stack.enter_context(socket.create_connection(("127.0.0.1", ns.ports["amqp"]), 10))
            with suppress(ConnectionError):
                stream.sendall(FLOODS[kind])
        works(ns, "orders")
        assert open_files(ns) < FILES - 10
    text = ns.log()[before:]
    assert "accept failed" not in text
    assert "Traceback" not in text
    assert " ERROR " not in text
    assert text.count("\n") <= 3 * LINES + 10


def test_connections_that_have_ended_are_forgotten(ns: NamespaceProcess) -> None:
    """More connections of every kind than the limit, one after the other."""
    trusted = ssl.create_default_context(cafile=str(ns.ca_file))
    for _ in range(35):
        with Raw(ns).opened():
            pass
        https = http.client.HTTPSConnection("localhost", ns.ports["tls"], timeout=10, context=trusted)
        https.request("GET", "/$isthmus/statistics", headers={"Authorization": token_of(ns)})
        answer = https.getresponse()
        assert answer.status == 200
        row = json.loads(answer.read())["namespace"]
        https.close()
        with socket.create_connection(("127.0.0.1", ns.ports["http"]), 10) as stream:
            stream.sendall(UPGRADE)
            assert stream.recv(65536).startswith(b"HTTP/1.1 101 ")
    assert row["unauthenticated_connections"] < 10
    assert row["evicted_connections"] > 0
    assert open_files(ns) < FILES - 40
    works(ns, "orders")


def test_a_client_over_tls_is_served_during_a_flood_of_handshakes(ns: NamespaceProcess) -> None:
    trusted = ssl.create_default_context(cafile=str(ns.ca_file))
    with ExitStack() as stack:
        for number in range(FILES):
            stream = stack.enter_context(socket.create_connection(("127.0.0.1", ns.ports["tls"]), 10))
            with suppress(ConnectionError):
                stream.sendall(b"\x16\x03\x01\x02\x00\x01\x00"[: number % 7 + 1])
        with trusted.wrap_socket(
            socket.create_connection(("127.0.0.1", ns.ports["tls"]), 10), server_hostname="localhost"
        ) as stream:
            stream.sendall(AMQP_HEADER)
            assert stream.recv(8) == AMQP_HEADER


def test_fragments_of_a_websocket_hold_no_memory_before_a_token(ns: NamespaceProcess) -> None:
    heartbeat = (
        (1020).to_bytes(4, "big") + b"\xff\0\0\0" + bytes(1012)
    )  # an empty frame whose header is as long as can be
    heartbeats = heartbeat * 64
    head = b"\x02\xff" + len(heartbeats).to_bytes(8, "big") + bytes(4)
    rest = b"\0" + head[1:]
    before = resident_bytes(ns)
    with ExitStack() as stack:
        for _ in range(8):
            stream = stack.enter_context(socket.create_connection(("127.0.0.1", ns.ports["amqp"]), 10))
            stream.sendall(UPGRADE)
            assert stream.recv(65536).startswith(b"HTTP/1.1 101 ")
            opening = AMQP_HEADER + OPEN
            stream.sendall(b"\x82\xfe" + len(opening).to_bytes(2, "big") + bytes(4) + opening)
            stream.sendall(head + heartbeats)
            for _ in range(63):
                stream.sendall(rest + heartbeats)  # fragments of one message that has no end
        assert resident_bytes(ns) - before < 16 << 20
    works(ns, "orders")


def put_tokens(client: Raw, count: int) -> None:
    """Shows so many bad tokens, as fast as the credit allows."""
    link = client.session.attach_sender("cbs", Target("$cbs"), source=Source("$cbs"))
    client.wait_until(lambda: link.credit)
    payload = section.encode_message(
        "SharedAccessSignature sr=x&sig=x&se=1&skn=x",
        application_properties={"operation": "put-token", "type": "sas", "name": "sb://host/orders"},
        value_body=True,
    )
    for number in range(count):
        while not link.credit and not client.ended:
            client.pump(0.1)
        if client.ended:
            return
        link.send(payload, number.to_bytes(4, "big"), settled=True)
        client.pump(0)


@pytest.mark.parametrize("has_key", [False, True])
def test_a_connection_of_bad_tokens_is_closed_and_its_lines_are_few(ns: NamespaceProcess, has_key: bool) -> None:
    before = len(ns.log())
    with Raw(ns).opened(plain=has_key) as client:
        put_tokens(client, 3000)
        assert client.ended
    works(ns, "orders")
    assert ns.log()[before:].count("request failed") <= LINES
    assert "Traceback" not in ns.log()[before:]


def test_large_messages_that_do_not_end_leave_descriptors_to_others(ns: NamespaceProcess) -> None:
    start = b"\0Su\xb0" + (50 << 20).to_bytes(4, "big")
    with Raw(ns).opened() as client:
        links = [
            client.session.attach_sender(f"s{number}", Target("big"), source=Source("me")) for number in range(120)
        ]
        client.wait_until(lambda: all(link.credit for link in links), 30)
        for number, link in enumerate(links):
            for part in range(20):  # more than what is kept in memory
                tag = str(number).encode() if not part else None
                transfer = Transfer(link.handle, number, tag, 0, False, True).encode()
                client.push(frame(client.session.channel, transfer + (start + bytes(60_000))[8 * bool(part) :]))
                client.session.sent_frames(1)
                client.pump(0)
        client.pump(1.0)  # the namespace reads what was sent
        assert open_files(ns) < FILES - 10
        works(ns, "orders")
    works(ns, "big")
    assert " ERROR " not in ns.log()


def test_owner_levels_that_are_stolen_again_and_again_leave_one_reader(ns: NamespaceProcess) -> None:
    path = "clicks/ConsumerGroups/$Default/Partitions/0"
    before = len(ns.log())
    with Raw(ns).opened() as first, Raw(ns).opened() as second:
        links = []
        for number in range(100):
            client = (first, second)[number % 2]
            links.append(
                client.session.attach_receiver(
                    f"r{number}",
                    Source(path),
                    target=Target("me"),
                    properties={Symbol("com.microsoft:epoch"): Long(number // 2)},
                )
            )
            client.wait_until(partial(attached, client, links[-1]))
        stolen = [event for one in (first, second) for event in one.events if isinstance(event, LinkDetached)]
        first.wait_until(lambda: len(detached(first)) == 50)
        second.wait_until(lambda: len(detached(second)) >= 49)
        assert {str(event.error.condition) for event in stolen if event.error} <= {"amqp:link:stolen"}
        late = first.session.attach_receiver(
            "late", Source(path), target=Target("me"), properties={Symbol("com.microsoft:epoch"): Long(3)}
        )
        first.wait_until(lambda: any(event.link is late for event in detached(first)))
        links[-1].grant(5)
        with connected(ns, "clicks") as sending:
            Sender(sending, "clicks").wait_ready().send_all([make_message(b"e")])
        second.wait_until(lambda: any(isinstance(event, Transfers) for event in second.events))
        assert not any(isinstance(event, Transfers) for event in first.events)
    assert "Traceback" not in ns.log()[before:]


def attached(client: Raw, link: Any) -> bool:
    return any(isinstance(event, LinkAttached) and event.link is link for event in client.events)


def detached(client: Raw) -> list[Any]:
    return [event for event in client.events if isinstance(event, LinkDetached)]


XML_BOMBS = {
    "entities": b'<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a "aaaaaaaaaa">'
    + b"".join(b'<!ENTITY a%d "%s">' % (n, b"&a%s;" % (b"" if n == 1 else b"%d" % (n - 1)) * 10) for n in range(1, 9))
    + b"]><x>&a8;</x>",
    "external": b'<!DOCTYPE x [<!ENTITY f SYSTEM "file:///etc/passwd">]><x>&f;</x>',
    "parameter": b'<!DOCTYPE x [<!ENTITY % p SYSTEM "http://127.0.0.1:1/x"> %p;]><x/>',
    "quadratic": b'<!DOCTYPE x [<!ENTITY a "' + b"a" * 60_000 + b'">]><x>' + b"&a;" * 30_000 + b"</x>",
    "depth": b"<a>" * 60_000,
    "width": b"<a>" + b"<b/>" * 60_000 + b"</a>",
    "attributes": b"<a " + b" ".join(b'x%d="1"' % n for n in range(25_000)) + b"/>",
    "namespaces": b"<a " + b" ".join(b'xmlns:x%d="u"' % n for n in range(16_000)) + b"/>",
    "size": b"<a>" + b"x" * (300 << 10) + b"</a>",
    "encoding": "<a>&#65;</a>".encode("utf-16") * 1000,
}


@pytest.mark.parametrize("bomb", XML_BOMBS)
def test_xml_bombs_are_refused_at_once(ns: NamespaceProcess, bomb: str) -> None:
    before = resident_bytes(ns)
    client = http.client.HTTPConnection("127.0.0.1", ns.ports["http"], timeout=10)
    began = time.monotonic()
    with suppress(BrokenPipeError):
        client.request("PUT", "/bomb?api-version=2021-05", XML_BOMBS[bomb], {"Authorization": token_of(ns)})
    answer = client.getresponse()
    assert answer.status in (400, 413), answer.read()
    assert b"root:" not in answer.read()
    assert time.monotonic() - began < 5
    assert resident_bytes(ns) - before < 64 << 20
    client.close()


def test_a_server_that_was_stopped_for_a_while_drops_no_client_that_kept_sending(ns: NamespaceProcess) -> None:
    with connected(ns, "orders") as client:
        sender = Sender(client, "orders").wait_ready()
        sender.send_all([make_message(b"before")])
        os.kill(ns.pid, signal.SIGSTOP)
        try:
            time.sleep(3.5)  # more than twice the idle time-out
        finally:
            os.kill(ns.pid, signal.SIGCONT)
        sender.send_all([make_message(b"after")])
        receiver = AnsweredReceiver(client, "orders")
        receiver.grant(2)
        taken = 0
        while taken < 2:
            client.wait_until(lambda: receiver.arrived, 20, "a message")
            for run in receiver.take():
                receiver.ask(run.first_id, run.first_id + len(run.payloads) - 1)
                taken += len(run.payloads)
        client.wait_until(lambda: receiver.answers, 20, "an answer")
