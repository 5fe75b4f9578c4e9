"""A namespace in memory and clients that talk to it without sockets."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from isthmus.amqp import Closed, Connection, Link, LinkAttached, LinkDetached, Transfers, section
from isthmus.amqp.performative import Source, Target
from isthmus.broker.namespace import Namespace
from isthmus.broker.peer import Peer
from isthmus.broker.security.authority import Authority
from isthmus.broker.security.entity_rules import EngineRules
from isthmus.broker.security.keyring import Keyring
from isthmus.broker.security.sas import make_token
from isthmus.entities import AuthorizationRule, Engine, EntityStatus, QueueDescription
from isthmus.store import MemoryJournal
from isthmus.testing.clock import ManualClock

KEY = "key-1"


class GatedJournal(MemoryJournal):
    """A journal in memory whose sync waits for the test, fails on demand, and is counted."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()
        self.error: Exception | None = None
        self.refusal: Exception | None = None  # as `error`, for each sync until it is taken back
        self.syncs = 0

    def sync(self) -> None:
        assert self.gate.wait(10)
        error, self.error = self.error or self.refusal, None
        if error is not None:
            raise error
        super().sync()
        self.syncs += 1


class Client:
    """An AMQP client whose wire is a method call; also the broker's `Wire`."""

    name = "client:1"
    unsent_bytes = 0
    admitted = False

    def __init__(self, broker: Broker, **connection: Any) -> None:
        self.broker = broker
        self.connection = Connection(
            server=False, container_id="client", hostname="host", **{"max_frame_size_bytes": 1 << 20, **connection}
        )
        self.events: list[Any] = []
        self.is_writable = True
        self.reading = True
        self.closed = False
        self.wrote: list[bytes] = []
        self.peer = Peer(broker.namespace, self)

    # ---- the broker's wire

    def write(self, data: bytes) -> None:
        self.wrote.append(data)

    def close(self) -> None:
        self.closed = True

    def admit(self) -> None:
        self.admitted = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    # ---- the client

    def pump(self) -> None:
        """Carry bytes in both directions until both are silent."""
        while True:
            up = self.connection.take()
            if up:
                self.peer.receive(up)
            down, self.wrote = b"".join(self.wrote), []
            if down:
                self.events += self.connection.receive(down, 0.0)
            if not up and not down:
                return

    def send_only(self) -> None:
        """Give the broker what the client has to send; the client reads nothing."""
        self.peer.receive(self.connection.take())

    async def settle(self) -> None:
        """Wait until the broker's loop and its disk have nothing left to do."""
        for _ in range(3):
            self.pump()
            await self.broker.namespace.commits.wait_idle()
            for _ in range(3):
                await asyncio.sleep(0)
        self.pump()

    def open(self, name: str | None = "root", key: str = KEY) -> Client:
        """Open with SASL PLAIN, or ANONYMOUS where `name` is None."""
        if name is None:
            self.connection.start()
        else:
            self.connection.start("PLAIN", f"\0{name}\0{key}".encode())
        self.pump()
        self.session = self.connection.begin()
        self.pump()
        return self

    def sender(self, address: str, name: str = "s") -> Link:
        link = self.session.attach_sender(name, Target(address=address), source=Source(address="me"))
        self.pump()
        return link

    def receiver(self, address: str, credit: int = 0, name: str = "r", **attach: Any) -> Link:
        attach.setdefault("rcv_settle_mode", 1)
        attach.setdefault("target", Target(address="me"))
        link = self.session.attach_receiver(name, Source(address=address), **attach)
        self.pump()
        if credit:
            link.grant(credit)
            self.pump()
        return link

    def seen(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def payloads(self, link: Link) -> list[bytes]:
        return [payload for event in self.seen(Transfers) if event.link is link for payload in event.payloads]

    def bodies(self, link: Link) -> list[bytes]:
        return [body(payload) for payload in self.payloads(link)]

    def attached(self, link: Link) -> bool:
        return any(event.link is link for event in self.seen(LinkAttached)) and not self.detached(link)

    def detached(self, link: Link) -> str:
        """The condition with which a link was detached; "" if it was not."""
        errors = [event.error for event in self.seen(LinkDetached) if event.link is link]
        return str(errors[-1].condition) if errors and errors[-1] is not None else ""

    def closed_with(self) -> str:
        """The condition with which the connection was closed; "" if it was not."""
        closed = self.seen(Closed)
        return str(closed[-1].error.condition) if closed and closed[-1].error is not None else ""


class Broker:
    """A namespace in memory with a few queues, and its clients."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = GatedJournal()
        self.engine = Engine(self.store, self.clock)
        rules = [
            AuthorizationRule("root", KEY, "key-2", ["Send", "Listen", "Manage"]),
            AuthorizationRule("reader", KEY, "key-2", ["Listen"]),
            AuthorizationRule("writer", KEY, "key-2", ["Send"]),
        ]
        self.namespace = Namespace(
            self.engine,
            self.store,
            Authority(Keyring(rules), EngineRules(self.engine)),
            self.clock,
            token_clock=self.clock,
        )
        self.engine.create_queue("orders")
        self.engine.create_queue("closed", QueueDescription(status=EntityStatus.RECEIVE_DISABLED))
        self.engine.create_topic("flights")
        self.engine.create_subscription("flights", "all")

    def client(self, name: str | None = "root", **connection: Any) -> Client:
        return Client(self, **connection).open(name)

    def token(self, resource: str = "sb://host/", name: str = "root", seconds: int = 3600) -> str:
        return make_token(resource, name, KEY, self.clock.wall_ms() + seconds * 1000)


def message(text: bytes | str, **parts: Any) -> bytes:
    return section.encode_message(text.encode() if isinstance(text, str) else text, **parts)


def body(payload: bytes) -> bytes:
    start, end = section.locate(payload).body
    return payload[start + (8 if payload[start + 3] == 0xB0 else 5) : end]


@pytest.fixture
async def broker():
    made = Broker()
    await made.namespace.commits.wait_idle()
    yield made
    made.store.gate.set()
    for peer in list(made.namespace.peers):
        peer.lost()
    await made.namespace.close()


@pytest.fixture(name="message")
def _message():
    return message


@pytest.fixture(name="body")
def _body():
    return body


@pytest.fixture
def new_client():
    return Client
