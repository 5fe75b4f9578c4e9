"""What the fault tests share: clients of the product's own transport that count what was answered, and looks at a queue."""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Self

from isthmus.amqp import Connection, Disposed, Opened, SentSettled, Transfers, codec, section
from isthmus.amqp.performative import Source, Target
from isthmus.connectors.servicebus.connect import endpoint_of_string
from isthmus.connectors.servicebus.connection_string import ConnectionString
from isthmus.testing.namespace import NamespaceProcess
from isthmus.transport import Client, Endpoint, Management, Receiver, Sender

STATE = "x-opt-message-state"
SEQUENCE = "x-opt-sequence-number"


class AnsweringClient(Client):
    """A client that also notifies receivers when the namespace has confirmed their dispositions."""

    def _dispatch(self, events: list[Any]) -> None:
        for event in events:
            if isinstance(event, SentSettled):
                owner = self._owners.get(event.amqp_session)
                if isinstance(owner, AnsweredReceiver):
                    owner.on_answered(event.first, event.last, event.state)
        super()._dispatch(events)


class AnsweredReceiver(Receiver):
    """A receiver whose dispositions are unsettled, so that the namespace answers each once it is durable."""

    def __init__(self, client: Client, path: str, **session: Any) -> None:
        super().__init__(client, path, **session)
        self.answers: list[tuple[int, int, Any]] = []

    def on_answered(self, first: int, last: int, state: Any) -> None:
        self.answers.append((first, last, state))

    def ask(self, first: int, last: int, state: Any = None) -> None:
        self.link.dispose(first, last, state, settled=False)


@dataclass
class Seen:
    """A message as a peek shows it; `state` is 0 active, 1 deferred, 2 scheduled."""

    sequence: int
    body: bytes
    state: int
    delivery_count: int
    annotations: dict[str, Any]


def endpoint_for(ns: NamespaceProcess) -> Endpoint:
    return endpoint_of_string(ConnectionString.parse(ns.connection_string))


@contextmanager
def connected(ns: NamespaceProcess, *paths: str) -> Iterator[AnsweringClient]:
    client = AnsweringClient(endpoint_for(ns))
    client.open()
    try:
        for path in paths:
            client.authorize(path)
        yield client
    finally:
        client.close()


def make_message(body: bytes, message_id: str = "", **sections: Any) -> bytes:
    return section.encode_message(body, properties={"message_id": message_id or os.urandom(8).hex()}, **sections)


def read_message(payload: bytes) -> Seen:
    sections = section.locate(payload)
    annotations = {str(key): value for key, value in section.decode_map(payload, sections.message_annotations).items()}
    body, _ = codec.decode(payload, sections.body[0] + 3)
    count = section.decode_header(payload, sections.header).delivery_count
    return Seen(int(annotations[SEQUENCE]), bytes(body), int(annotations.get(STATE, 0)), count, annotations)


def look(client: Client, path: str) -> list[Seen]:
    """The contents of a queue, in sequence order."""
    management = Management(client, path)
    found: list[Seen] = []
    while page := management.peek(found[-1].sequence + 1 if found else 0, 1000):
        found += [read_message(payload) for payload in page]
    management.close()
    return found


def works(ns: NamespaceProcess, path: str) -> None:
    """A normal client sends, receives and completes a message."""
    mark = os.urandom(8)
    with connected(ns, path) as client:
        Sender(client, path).wait_ready().send_all([make_message(mark)])
        receiver = AnsweredReceiver(client, path)
        receiver.grant(1)
        client.wait_until(lambda: receiver.arrived, 20, "a message")
        (run,) = receiver.take()
        assert read_message(run.payloads[0]).body == mark
        receiver.ask(run.first_id, run.first_id)
        client.wait_until(lambda: receiver.answers, 20, "an answer")


class Raw:
    """A malformed client: it uses the protocol engine where it helps, and sends any bytes at any time.

    Attributes:
        connection: the engine.
        session: begun by `opened`.
        events: everything that the namespace has sent, as far as the engine understood it.
    """

    def __init__(self, ns: NamespaceProcess, port: str = "amqp") -> None:
        self.ns = ns
        self.socket = socket.create_connection(("127.0.0.1", ns.ports[port]), 10)
        self.connection = Connection(server=False, container_id="raw", hostname="host", max_frame_size_bytes=1 << 20)
        self.session: Any = None
        self.events: list[Any] = []
        self.bytes = b""
        self.ended = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def opened(self, *, plain: bool = True) -> Self:
        """Opens; with the namespace's key, or without any credential."""
        parsed = ConnectionString.parse(self.ns.connection_string)
        assert parsed.key is not None
        response = f"\0{parsed.key_name}\0{parsed.key.reveal()}".encode() if plain else None
        self.connection.start("PLAIN" if plain else "ANONYMOUS", response)
        self.wait(Opened)
        self.session = self.connection.begin()
        return self

    def push(self, data: bytes) -> None:
        """Sends what the engine has queued, then any bytes; a namespace that has closed meanwhile is no error."""
        with suppress(ConnectionError):
            self.socket.sendall(self.connection.take() + data)

    def pump(self, seconds: float) -> None:
        """Takes what comes within some time, up to the end of the stream."""
        self.push(b"")
        readable, _, _ = select.select([self.socket], [], [], seconds)
        if not readable:
            return
        try:
            data = self.socket.recv(1 << 20)
        except ConnectionError:
            data = b""
        self.ended = self.ended or not data
        self.bytes += data
        self.events += self.connection.receive(data, time.monotonic()) if data else []

    def wait_until(self, condition: Callable[[], Any], seconds: float = 10.0) -> Any:
        limit = time.monotonic() + seconds
        while not (found := condition()):
            assert time.monotonic() < limit, f"did not come: {self.events[-5:]}"
            assert not self.ended, f"the stream ended: {self.events[-5:]}"
            self.pump(0.05)
        return found

    def of(self, *kinds: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kinds)]

    def wait(self, kind: type, seconds: float = 10.0) -> Any:
        """The first event of a kind."""
        return self.wait_until(lambda: self.of(kind), seconds)[0]

    def wait_end(self, seconds: float = 10.0) -> bytes:
        """Everything up to the end of the stream."""
        limit = time.monotonic() + seconds
        while not self.ended:
            assert time.monotonic() < limit, "the stream does not end"
            self.pump(0.05)
        return self.bytes

    def wait_answer(self, seconds: float = 10.0) -> bytes:
        """The first bytes that come."""
        self.wait_until(lambda: self.bytes, seconds)
        return self.bytes

    def outcome(self, delivery_id: int) -> Any:
        """The state in which the namespace has settled a delivery."""
        found = self.wait_until(lambda: [e for e in self.of(Disposed) if e.first <= delivery_id <= e.last])
        return found[0].state

    def ask(self, node: str, payload: bytes) -> dict[Any, Any]:
        """The application properties of the reply to a request."""
        replies = self.session.attach_receiver(f"{node}-in", Source(node), target=Target("me"))
        replies.grant(1)
        requests = self.session.attach_sender(f"{node}-out", Target(node), source=Source("me"))
        self.wait_until(lambda: requests.credit > 0)
        requests.send(payload, b"ask!")
        event = self.wait_until(lambda: [e for e in self.of(Transfers) if e.link is replies])[0]
        sections = section.locate(event.payloads[0])
        return section.decode_map(event.payloads[0], sections.application_properties)
