"""Mutated conversations against a served namespace: no crash, no hang, no growth, and nothing done without a token.

The conversations are recorded at the start of each run, through a loopback proxy, from the product's own client, from
azure-servicebus and its administration client, from azure-eventhub and from a client with transactions, and sent over
AMQP, over a WebSocket and over HTTP, so that no token is in the repository.
"""

from __future__ import annotations

import random
import re
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

import psutil
import pytest
from azure.core.pipeline.transport import RequestsTransport
from azure.eventhub import EventData, EventHubConsumerClient, EventHubProducerClient
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.management import ServiceBusAdministrationClient

from harness.client.fault_client import AnsweringClient, Raw, connected, endpoint_for, look, make_message, works
from harness.client.sdk_client import receive
from harness.client.transaction_client import attach_coordinator, declare, discharge, send_with_state, within
from isthmus.amqp import Transfers
from isthmus.amqp.performative import Accepted, Source, Target
from isthmus.connectors.servicebus.connection_string import ConnectionString
from isthmus.testing.namespace import NamespaceProcess, namespace
from isthmus.transport import Management, Receiver, Sender

# Per recorded entity a queue, a queue with sessions and an event hub.
CONFIG = """
queues:
  normal: {}
  orders: {}
  orders-sessions: {requires_session: true}
  untouched: {requires_duplicate_detection: true}
  untouched-sessions: {requires_session: true}
event_hubs:
  orders-hub: {partition_count: 2}
  untouched-hub: {partition_count: 2}
"""
CASES = 1_000_000
SHORT_CASES = 6_000
THREADS = 4
PARTS = 20
GROWTH_LIMIT_BYTES = 50 << 20
SIGNATURE = re.compile(rb"(?<=sig=)[A-Za-z0-9%+/=]{20,}")


class Tape:
    """A proxy that keeps what clients sent, one entry a connection."""

    def __init__(self, port: int) -> None:
        self.sent: list[bytearray] = []
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(0.1)
        self.port: int = self._listener.getsockname()[1]
        self._closing = False
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        self._closing = True
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def _accept(self) -> None:
        while not self._closing:
            with suppress(TimeoutError):
                client, _ = self._listener.accept()
                kept = bytearray()
                self.sent.append(kept)
                self._threads.append(threading.Thread(target=self._carry, args=(client, kept)))
                self._threads[-1].start()

    def _carry(self, client: socket.socket, kept: bytearray) -> None:
        with client, socket.create_connection(("127.0.0.1", self._target)) as server, suppress(OSError):
            while not self._closing:
                for source in select.select([client, server], [], [], 0.1)[0]:
                    data = source.recv(65536)
                    if not data:
                        return
                    if source is client:
                        kept += data
                    (server if source is client else client).sendall(data)


@contextmanager
def taped(ns: NamespaceProcess, port: str, text: str) -> Iterator[tuple[Tape, str]]:
    tape = Tape(ns.ports[port])
    try:
        yield tape, text.replace(f":{ns.ports[port]}", f":{tape.port}")
    finally:
        tape.close()


def record(ns: NamespaceProcess, queue: str) -> list[bytes]:
    """What clients send while they do everything once."""
    found: list[bytes] = []
    with taped(ns, "amqp", ns.connection_string) as (tape, text):
        sdk = ServiceBusClient.from_connection_string(text)
        with sdk, sdk.get_queue_sender(queue) as sender, sdk.get_queue_receiver(queue) as receiver:
            sender.send_messages([ServiceBusMessage(f"body {n}", application_properties={"n": n}) for n in range(3)])
            sender.send_messages(ServiceBusMessage("one", subject="s", correlation_id="c"))
            first, second, third, fourth = receive(receiver, 4)
            receiver.complete_message(first)
            receiver.abandon_message(second)
            receiver.dead_letter_message(third, reason="r")
            receiver.defer_message(fourth)
            receiver.peek_messages(5)
        endpoint = endpoint_for(ns)
        own = AnsweringClient(type(endpoint)(endpoint.host, tape.port, False, endpoint.authority, endpoint.credential))
        with own.open() as client:
            client.authorize(queue)
            Sender(client, queue).wait_ready().send_all([make_message(b"%d" % n) for n in range(8)])
            Sender(client, queue).wait_ready().send_all([make_message(b"%d" % n) for n in range(8)], batch=4)
            receiving = Receiver(client, queue)
            receiving.grant(16)
            client.wait_until(lambda: receiving.received >= 16, 10, "messages")
            for run in receiving.take():
                receiving.dispose(run.first_id, run.first_id + len(run.payloads) - 1)
            Management(client, queue).peek(0, 10)
        record_sessions(text, f"{queue}-sessions")
        record_events(text, f"{queue}-hub")
        record_transaction(ns, tape.port, queue)
        found += map(bytes, tape.sent)
    with taped(ns, "http", ns.admin_connection_string) as (tape, text):
        transport = PlainCopy(ns.ca_file)
        with ServiceBusAdministrationClient.from_connection_string(text, transport=transport) as client:
            administer(client, queue)
        found += [bytes(tape.sent[0]), bytes(transport.said)]  # the start of TLS, and what went through it
    assert len(found) >= 8
    return found


def record_sessions(text: str, queue: str) -> None:
    sdk = ServiceBusClient.from_connection_string(text)
    with sdk, sdk.get_queue_sender(queue) as sender:
        sender.send_messages([ServiceBusMessage(f"body {n}", session_id="s") for n in range(3)])
        with sdk.get_queue_receiver(queue, session_id="s") as receiver:
            receiver.session.set_state(b"state")
            receiver.session.get_state()
            receiver.session.renew_lock()
            first, second, third = receive(receiver, 3)
            receiver.complete_message(first)
            receiver.abandon_message(second)
            receiver.defer_message(third)
            receiver.peek_messages(5)


def record_events(text: str, hub: str) -> None:
    with EventHubProducerClient.from_connection_string(text, eventhub_name=hub) as producer:
        producer.get_eventhub_properties()
        batch = producer.create_batch(partition_key="k")
        for number in range(3):
            batch.add(EventData(f"event {number}"))
        producer.send_batch(batch)
        producer.send_event(EventData("one"), partition_id="0")
    consumer = EventHubConsumerClient.from_connection_string(text, "$Default", eventhub_name=hub)
    came = threading.Event()
    options = {"partition_id": "0", "starting_position": "-1", "owner_level": 1}
    reading = threading.Thread(target=consumer.receive, args=(lambda *_: came.set(),), kwargs=options)
    reading.start()
    assert came.wait(20)
    consumer.close()
    reading.join()


def record_transaction(ns: NamespaceProcess, port: int, queue: str) -> None:
    """One that is carried out and one that is rolled back, each with a send and a completion."""

    class Beside:
        ports: ClassVar = {"amqp": port}
        connection_string = ns.connection_string

    with Raw(Beside()).opened() as client:  # type: ignore[arg-type]
        control = attach_coordinator(client.session)
        sender = client.session.attach_sender("s", Target(queue), source=Source("me"))
        receiver = client.session.attach_receiver("r", Source(queue), target=Target("me"), rcv_settle_mode=1)
        client.wait_until(lambda: control.credit and sender.credit)
        for fails in (False, True):
            client.events.clear()
            sender.send(make_message(b"first"), b"%04d" % fails)
            receiver.grant(1)
            arrived: Any = client.wait_until(lambda: [e for e in client.of(Transfers) if e.link is receiver])[0]
            txn_id = client.outcome(declare(control)).txn_id
            client.outcome(send_with_state(sender, make_message(b"x"), within(txn_id)))
            number = arrived.first_delivery_id
            receiver.dispose(number, number, within(txn_id, Accepted()), settled=False)
            assert isinstance(client.outcome(discharge(control, txn_id, fail=fails)), Accepted)
        # Rolled back, it is locked still, and the end of its lock would count as a delivery.
        receiver.dispose(number, number, Accepted(), settled=True)
        client.pump(0.2)


class PlainCopy(RequestsTransport):
    """Keeps what the administration client sends, as it would be without TLS."""

    def __init__(self, ca_file: Path) -> None:
        super().__init__(connection_verify=str(ca_file))
        self.said = bytearray()

    def send(self, request: Any, **options: Any) -> Any:
        body = request.data or request.content or b""
        body = body.encode() if isinstance(body, str) else body
        where = urlsplit(request.url)
        headers = {"Host": where.netloc, **request.headers, "Content-Length": str(len(body))}
        self.said += f"{request.method} {where.path}?{where.query} HTTP/1.1\r\n".encode()
        self.said += "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode() + b"\r\n" + body
        return super().send(request, **options)


def administer(client: ServiceBusAdministrationClient, queue: str) -> None:
    client.get_queue_runtime_properties(queue)
    client.create_queue(f"{queue}-made")
    client.create_topic(f"{queue}-topic")
    client.create_subscription(f"{queue}-topic", "s")
    client.create_rule(f"{queue}-topic", "s", "r")
    list(client.list_queues())
    client.delete_topic(f"{queue}-topic")
    client.delete_queue(f"{queue}-made")


def without_token(said: bytes, ns: NamespaceProcess) -> bytes:
    """The same bytes with signatures that nothing signed, and with a key that is none."""
    key = ConnectionString.parse(ns.connection_string).key
    assert key is not None
    plain_key = key.reveal().encode()
    return SIGNATURE.sub(lambda match: b"A" * len(match[0]), said).replace(plain_key, b"A" * len(plain_key))


# ---- mutations


def frames_of(said: bytes) -> list[bytes]:
    """The pieces of a conversation: protocol headers and frames, or lines of HTTP."""
    if not said.startswith(b"AMQP"):
        return said.splitlines(keepends=True)
    pieces, at = [], 0
    while at < len(said):
        size = 8 if said[at : at + 4] == b"AMQP" else max(8, struct.unpack_from(">I", said, at)[0])
        pieces.append(said[at : at + size])
        at += size
    return pieces


def in_websocket(frames: Sequence[bytes]) -> list[bytes]:
    """The same conversation through a WebSocket, a message for each frame; the mask changes nothing."""
    hello = (
        b"GET /$servicebus/websocket HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        b"Sec-WebSocket-Protocol: AMQPWSB10\r\n\r\n"
    )
    said = [hello]
    for data in frames:
        size = struct.pack(">B", 0x80 | len(data)) if len(data) < 126 else struct.pack(">BH", 0xFE, len(data))
        if len(data) >> 16:
            size = struct.pack(">BQ", 0xFF, len(data))
        said.append(b"\x82" + size + bytes(4) + data)
    return said


def conversations(recorded: Sequence[bytes]) -> list[list[bytes]]:
    """What was recorded in pieces, and what was AMQP also through a WebSocket."""
    talks = [frames_of(said) for said in recorded]
    return talks + [in_websocket(talk) for talk, said in zip(talks, recorded, strict=True) if said.startswith(b"AMQP")]


def mutate(chance: random.Random, talks: Sequence[list[bytes]]) -> bytes:
    pieces = list(chance.choice(talks))
    for _ in range(chance.choice((1, 1, 1, 2, 3, 8))):
        at = chance.randrange(len(pieces))
        piece = bytearray(pieces[at])
        kind = chance.randrange(10)
        spot = chance.randrange(len(piece)) if piece else 0
        if kind == 0 and piece:
            piece[spot] ^= 1 << chance.randrange(8)
        elif kind == 1 and piece:
            piece[spot] = chance.choice((0, 1, 0x40, 0x45, 0x7F, 0x80, 0xC0, 0xD0, 0xF0, 0xFF))
        elif kind == 2:
            piece[spot:spot] = chance.randbytes(chance.choice((1, 2, 8, 300)))
        elif kind == 3:
            del piece[spot : spot + chance.choice((1, 4, 50))]
        elif kind == 4:
            piece *= 2
        elif kind == 5 and len(pieces) > 1:
            del pieces[at]
            continue
        elif kind == 6:
            other = chance.randrange(len(pieces))
            pieces[at], pieces[other] = pieces[other], pieces[at]
            continue
        elif kind == 7:
            pieces.insert(at, chance.choice(chance.choice(talks)))
            continue
        elif kind == 8 and len(piece) >= 4:
            piece[spot : spot + 4] = chance.choice(
                (b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\0\0\0\0", b"\0\0\0\x08")
            )
        elif kind == 9:
            # A changed frame whose size is corrected is processed further than any other.
            piece[spot : spot + chance.randrange(4)] = chance.randbytes(chance.randrange(12))
            if len(piece) >= 8 and piece[4:5] == b"\x02":
                piece[:4] = struct.pack(">I", len(piece))
        pieces[at] = bytes(piece)
    said = b"".join(pieces)
    return said[: chance.randrange(len(said) + 1)] if chance.random() < 0.1 else said


def say(port: int, said: bytes) -> None:
    """Sends all of it, closes, and waits for the namespace to close too."""
    with socket.create_connection(("127.0.0.1", port), 30) as stream:
        try:
            stream.sendall(said)
            stream.shutdown(socket.SHUT_WR)
            while stream.recv(1 << 18):
                pass
        except TimeoutError:
            raise AssertionError(f"the namespace neither answered nor closed within 30 s: {said[:2000]!r}") from None
        except OSError:
            pass


def assault(ns: NamespaceProcess, talks: list[list[bytes]], count: int, seed: int) -> None:
    """Sends `count` mutated conversations from several threads; raises what they raise."""
    raised: list[BaseException] = []
    ports = list(ns.ports.values())

    def work(number: int) -> None:
        chance = random.Random(seed + number)
        try:
            for _ in range(count // THREADS):
                if raised:
                    return
                say(chance.choice(ports), mutate(chance, talks))
        except BaseException as error:  # noqa: BLE001 - raised below
            raised.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if raised:
        raise raised[0]


@pytest.fixture
def ns(tmp_path: Path) -> Iterator[NamespaceProcess]:
    with namespace(tmp_path / "data", config=CONFIG) as running:
        yield running


def count_of(long_count: Callable[[int], int]) -> int:
    wanted = long_count(CASES)
    return wanted if wanted == CASES else SHORT_CASES


def test_mutated_conversations(
    ns: NamespaceProcess, long_count: Callable[[int], int], counted: Callable[[str, str], None]
) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    talks = conversations(record(ns, "orders"))
    process = psutil.Process(ns.pid)
    assault(ns, talks, 400, seed)
    works(ns, "normal")
    time.sleep(0.5)
    before, files = process.memory_info().rss, process.num_fds()
    began = time.monotonic()
    count = count_of(long_count)
    seen_bytes = 0
    for part in range(PARTS):
        assault(ns, talks, count // PARTS, seed + 100 * (part + 1))
        works(ns, "normal")
        with ns.log_file.open("rb") as file:
            file.seek(seen_bytes)
            log = file.read().decode(errors="replace")
            seen_bytes = file.tell()
        assert "Traceback" not in log, log[log.index("Traceback") - 500 :][:5000]
        print(f"part {part}: {process.memory_info().rss >> 20} MiB, {time.monotonic() - began:.0f} s")
    time.sleep(0.5)
    grown = process.memory_info().rss - before
    rate = count / (time.monotonic() - began)
    counted(
        f"{count} mutated conversations, grown by less than {GROWTH_LIMIT_BYTES >> 20} MiB",
        f"grown by {grown >> 20} MiB from {before >> 20}, {process.num_fds()} files, {rate:.0f}/s, seed {seed}",
    )
    assert process.is_running()
    assert grown < GROWTH_LIMIT_BYTES
    assert process.num_fds() <= files + 20


def test_nothing_is_done_without_a_token(
    ns: NamespaceProcess, long_count: Callable[[int], int], counted: Callable[[str, str], None]
) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    talks = conversations([without_token(said, ns) for said in record(ns, "untouched")])
    with connected(ns, "untouched") as client:
        Sender(client, "untouched").wait_ready().send_all([make_message(b"mark", "mark")])
    before, entities = snapshot(ns), entities_of(ns)
    process = psutil.Process(ns.pid)
    assault(ns, talks, 400, seed)
    time.sleep(0.5)
    resident = process.memory_info().rss
    count = count_of(long_count) // 2
    for part in range(1, PARTS + 1):
        assault(ns, talks, count // PARTS, seed + 100 * part)
        assert snapshot(ns) == before
        assert entities_of(ns) == entities
        works(ns, "normal")
        grown = process.memory_info().rss - resident
        print(f"{part * (count // PARTS)} said, nothing changed, grown by {grown >> 20} MiB")
    counted(
        f"{count} mutated conversations without a token change nothing, grown by less than {GROWTH_LIMIT_BYTES >> 20} MiB",
        f"nothing changed, grown by {grown >> 20} MiB from {resident >> 20}, seed {seed}",
    )
    assert grown < GROWTH_LIMIT_BYTES


def snapshot(ns: NamespaceProcess) -> list[Any]:
    """The contents of a queue, a queue with sessions and an event hub."""
    found: list[Any] = []
    with connected(ns, "untouched", "untouched-sessions") as client:
        for path in ("untouched", "untouched-sessions"):
            found += [(path, seen.sequence, seen.delivery_count, seen.body) for seen in look(client, path)]
        Receiver(client, "untouched-sessions", in_session=True, session_id="s").wait_attached()
        management = Management(client, "untouched-sessions")
        reply = management.finish(management.start("get-session-state", {"session-id": "s"}))
        found.append(bytes(reply["session-state"]))
    with EventHubProducerClient.from_connection_string(ns.connection_string, eventhub_name="untouched-hub") as hub:
        found += [hub.get_partition_properties(each)["last_enqueued_sequence_number"] for each in ("0", "1")]
    return found


def entities_of(ns: NamespaceProcess) -> list[str]:
    with ServiceBusAdministrationClient.from_connection_string(
        ns.admin_connection_string, connection_verify=str(ns.ca_file)
    ) as client:
        return sorted([queue.name for queue in client.list_queues()] + [topic.name for topic in client.list_topics()])
