"""The ports of the connector `servicebus` against real namespaces, driven by one small loop as a host drives them."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from isthmus.amqp import section
from isthmus.bridge.delivery_event import Granted, Lost, Opened, Outcome, Send
from isthmus.bridge.port import Arrived, Blocked, Drained, Exhausted, SourceLost, SourceOpened
from isthmus.bridge.refusal import RefusalKind
from isthmus.bridge.registry import connector
from isthmus.connectors.servicebus.connect import endpoint_of_string, open_client
from isthmus.connectors.servicebus.connection_string import ConnectionString
from isthmus.testing.namespace import NamespaceProcess, namespace
from isthmus.transport import Management, Receiver, Sender

ENTITIES = """
limits: {min_lock_duration: 1s}
queues:
  a: {lock_duration: 30s, max_delivery_count: 100}
  b: {}
  renewed: {lock_duration: 3s, max_delivery_count: 100}
  held: {lock_duration: 5s}
  present: {}
  empty: {}
  closed: {status: Disabled}
topics:
  flights:
    subscriptions:
      all: {max_delivery_count: 100}
"""


@pytest.fixture(scope="module")
def served() -> Iterator[NamespaceProcess]:
    config = ENTITIES + "  many: {subscriptions: {all: {}}}\n"
    with namespace(config=config) as running:
        yield running


@pytest.fixture(autouse=True)
def _place(served: NamespaceProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORT_TEST", served.connection_string)


def client_of(served: NamespaceProcess, path: str) -> Any:
    return open_client(endpoint_of_string(ConnectionString.parse(served.connection_string)), path, "test")


def fill(served: NamespaceProcess, path: str, count: int, first: int = 0) -> None:
    with client_of(served, path) as client:
        bodies = [section.encode_message(b"m%d" % n, properties={"message_id": f"m{n}"}) for n in range(first, first + count)]
        Sender(client, path).wait_ready().send_all(bodies, batch=50)


def standing(served: NamespaceProcess, path: str) -> list[str]:
    """The message ids that stand at an entity."""
    found: list[str] = []
    with client_of(served, path) as client:
        node, start = Management(client, path), 0
        while page := node.peek(start, 250):
            found += map(message_id, page)
            start = section.decode_map(page[-1], section.locate(page[-1]).message_annotations)["x-opt-sequence-number"] + 1
    return found


def message_id(message: bytes) -> str:
    return str(section.decode_properties(message, section.locate(message).properties)["message_id"])


class Host:
    """The loop: every event of every end goes to `on_event(key, event)`."""

    def __init__(self) -> None:
        kind = connector("servicebus")
        self.sources, self.targets = kind.sources(), kind.targets()
        self.ends: dict[int, Any] = {}
        self.events: dict[int, list[Any]] = {}
        self.handlers: dict[int, Callable[[Any], None]] = {}
        self.polls = 0
        self.longest = 0.0

    def source(self, key: int, path: str, **options: Any) -> Any:
        return self._add(key, self.sources.source(key, {"connection": "env:PORT_TEST", "entity": path}, **options))

    def target(self, key: int, path: str, **options: str) -> Any:
        return self._add(key, self.targets.target(key, {"connection": "env:PORT_TEST", "entity": path} | options))

    def _add(self, key: int, end: Any) -> Any:
        self.ends[key], self.events[key] = end, []
        end.open()
        return end

    def turn(self, until: float) -> None:
        pools = (self.sources, self.targets)
        now = time.monotonic()
        due = min(until, *(pool.deadline(now) for pool in pools), *(end.deadline(now) for end in self.ends.values()))
        poll = select.poll()
        for pool in pools:
            for descriptor, interest in pool.descriptors():
                poll.register(descriptor, interest)
        ready = dict(poll.poll(max(0.0, due - now) * 1000))
        now = time.monotonic()
        keys = {key for pool in pools for key in pool.service(ready, now)}
        keys |= {key for key, end in self.ends.items() if end.deadline(now) <= now}
        for key in sorted(keys):
            self.polls += 1
            for event in self.ends[key].poll(now):
                self.events[key].append(event)
                if key in self.handlers:
                    self.handlers[key](event)
        for pool in pools:
            pool.flush()
        self.longest = max(self.longest, time.monotonic() - now)

    def run(self, condition: Callable[[], Any], seconds: float = 30.0) -> None:
        until = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < until, {key: events[-5:] for key, events in self.events.items()}
            self.turn(min(until, time.monotonic() + 0.5))

    def told(self, key: int, kind: type) -> list[Any]:
        return [event for event in self.events[key] if isinstance(event, kind)]

    def ids(self, key: int) -> list[str]:
        return [message_id(payload) for event in self.told(key, Arrived) for payload in event.payloads]

    def close(self) -> None:
        for end in self.ends.values():
            end.close()
        self.sources.close()
        self.targets.close()


@contextmanager
def host() -> Iterator[Host]:
    made = Host()
    try:
        yield made
    finally:
        made.close()


class Route:
    """Joins a source and a target: what the target accepts is settled; all that is not is sent again after a loss."""

    def __init__(self, host: Host, key: int, source: str, target: str, window: int = 1000, **options: Any) -> None:
        self.window = window
        self.waiting: list[tuple[int, bytes]] = []
        self.sent: list[tuple[int, bytes]] = []  # by ordinal
        self.answered = 0
        self.room = 0
        self.settled: set[int] = set()
        self.unsettled = 0
        self.is_exhausted = False
        self.reopen_at: dict[int, float] = {}
        self.host, self.key = host, key
        self.source = host.source(key, source, **options)
        self.target = host.target(key + 100_000, target)
        host.handlers[key] = self.on_source
        host.handlers[key + 100_000] = self.on_target

    def on_source(self, event: Any) -> None:
        if isinstance(event, SourceOpened):
            self.source.grant(self.window)
        elif isinstance(event, Arrived):
            positions, payloads = list(event.positions), list(event.payloads)
            offsets = [0]
            for payload in payloads:
                offsets.append(offsets[-1] + len(payload))
            copies = self.target.copies(b"".join(payloads), offsets, int(time.time() * 1000))
            assert copies.rows is None
            self.waiting += zip(positions, copies.payloads, strict=True)
            self.send()
        elif isinstance(event, SourceLost):
            self.reopen_at[0] = time.monotonic() + 0.2
        elif isinstance(event, Exhausted):
            self.is_exhausted = True

    def on_target(self, event: Any) -> None:
        if isinstance(event, Granted):
            self.room = event.credit
        elif isinstance(event, Outcome):
            assert event.refusal is None, event
            positions = [position for position, _ in self.sent[event.first : event.last + 1]]
            for position in positions:
                self.source.settle(position, position)
            self.settled.update(positions)
            self.answered = event.last + 1
            self.source.grant(self.window)
        elif isinstance(event, Opened):
            again, self.sent, self.answered = self.sent[self.answered :], [], 0
            self.waiting = again + self.waiting
        elif isinstance(event, Lost):
            self.room = 0
            self.reopen_at[1] = time.monotonic() + 0.2
        self.send()

    def send(self) -> None:
        count = min(self.room, len(self.waiting))
        if count > 0:
            part, self.waiting = self.waiting[:count], self.waiting[count:]
            self.sent += part
            self.room -= count
            self.target.send(Send([payload for _, payload in part]))

    def reopen(self) -> None:
        now = time.monotonic()
        for which, at in list(self.reopen_at.items()):
            if now >= at:
                del self.reopen_at[which]
                (self.source, self.target)[which].open()


def first_times(ids: list[str]) -> list[str]:
    return list(dict.fromkeys(ids))


def test_copies_in_order_and_settles(served: NamespaceProcess) -> None:
    fill(served, "a", 5000)
    with host() as loop:
        route = Route(loop, 1, "a", "b")
        loop.run(lambda: len(route.settled) >= 5000)
        route.source.drain()
        loop.run(lambda: loop.told(1, Drained))
        assert loop.ids(1) == [f"m{n}" for n in range(5000)]
        assert isinstance(loop.events[1][0], SourceOpened)
        assert loop.events[1][0].identity
        assert route.source.clock_offset_ms is not None
    assert standing(served, "a") == []
    assert standing(served, "b") == [f"m{n}" for n in range(5000)]
