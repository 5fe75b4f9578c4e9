"""An in-memory system whose targets the test controls, and a reader whose frames the test sends."""

from __future__ import annotations

import contextlib
import itertools
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from isthmus.bridge.delivery_event import Disposition, Granted, Lost, Opened, Outcome, Send
from isthmus.bridge.frame import Kind, pack_json, pack_numbers, unpack_flushed, unpack_json, unpack_numbers, unpack_runs
from isthmus.bridge.host.channel import Channel, listen
from isthmus.bridge.port import Capabilities, Copies
from isthmus.bridge.refusal import Refusal, RefusalKind
from isthmus.bridge.route_spec import End, RouteSpec
from isthmus.errors import InvalidArgumentError

WAIT_SECONDS = 20.0
BUSY = Refusal(RefusalKind.BLOCKED, "busy", "the target is busy")
AWAY = Refusal(RefusalKind.UNKNOWN, "", "the connection was lost")
NOT_FOUND = Refusal(RefusalKind.FATAL, "not-found", "there is no such entity")


class FakeTarget:
    """A target of `FakeSystem`; only the loop's thread calls what the port has."""

    def __init__(self, system: FakeSystem, key: int, options: Mapping[str, str], origin_identity: str) -> None:
        self.system = system
        self.key = key
        self.name = options["entity"]
        self.origin_identity = origin_identity
        self.events: deque[Any] = deque()
        self.sent = 0  # deliveries of the present connection
        self.opens = 0
        self.is_closed = self.is_lost = False
        self.clocks: list[int] = []

    def open(self) -> None:
        self.opens += 1
        if self.name in self.system.silent:
            return
        if self.name in self.system.broken:
            raise ValueError("broken connector")
        self.sent = 0
        self.is_lost = False
        self.report(Opened(self.system.message_bytes), Granted(self.system.credit))

    def poll(self, now: float) -> Sequence[Any]:
        events = []
        while self.events:
            events.append(self.events.popleft())
        return events

    def deadline(self, now: float) -> float:
        return float("inf")

    def copies(self, data: bytes, offsets: Sequence[int], now_ms: int) -> Copies:
        assert self.opens
        self.clocks.append(now_ms)
        payloads = [data[a:b] for a, b in itertools.pairwise(offsets)]
        refused = [row for row, payload in enumerate(payloads) if payload.startswith(b"visited")]
        if not refused:
            return Copies(payloads)
        rows = [row for row in range(len(payloads)) if row not in refused]
        discarded = Disposition("complete", "visited", "")
        return Copies([payloads[row] for row in rows], [(row, discarded) for row in refused], rows)

    def send(self, send: Send) -> None:
        assert not self.is_closed
        count = 1 if send.is_envelope else len(send.payloads)
        first, self.sent = self.sent, self.sent + count
        with self.system.changed:
            self.system.received.setdefault(self.name, []).extend(send.payloads)
            self.system.changed.notify_all()
        if self.is_lost:
            return
        if self.system.decide is not None:
            reported = self.system.decide(first, self.sent - 1)
            self.is_lost = any(isinstance(event, Lost) for event in reported)
            self.report(*reported, *([] if self.is_lost else [Granted(self.system.credit)]))
        elif self.system.acknowledges and self.name not in self.system.mute:
            self.report(Outcome(first, self.sent - 1), Granted(self.system.credit))

    def close(self) -> None:
        self.is_closed = True
        with self.system.changed:
            self.system.closed.append(self.key)
            self.system.changed.notify_all()

    def report(self, *events: Any) -> None:
        """Reports events in the next round; for any thread."""
        self.events.extend(events)
        self.system.rouse(self.key)


class FakeSystem:
    """Connector, pool and system in one.

    Attributes:
        received: payloads that were sent, by name of the entity.
        acknowledges: whether targets acknowledge at once.
        decide: what a target reports for deliveries (first, last) instead.
        mute: entities that never acknowledge on their own.
        silent: entities that never answer to `open`.
        broken: entities whose `open` raises.
    """

    kind = "fake"
    capabilities = Capabilities()

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.received: dict[str, list[bytes]] = {}
        self.closed: list[int] = []
        self.acknowledges = True
        self.decide: Callable[[int, int], Sequence[Any]] | None = None
        self.mute: set[str] = set()
        self.silent: set[str] = set()
        self.broken: set[str] = set()
        self.credit = 100_000
        self.message_bytes = 0
        self.by_key: dict[int, FakeTarget] = {}
        self.is_pool_closed = False
        self.services = 0
        self._roused: deque[int] = deque()
        self._reads, self._writes = socket.socketpair()
        self._reads.setblocking(False)
        self._writes.setblocking(False)

    # ---- connector and pool

    def __call__(self, kind: str) -> FakeSystem:
        if kind != "fake":
            raise InvalidArgumentError(f"kind '{kind}' is unknown")
        return self

    def targets(self) -> FakeSystem:
        return self

    def target(self, key: int, options: Mapping[str, str], *, origin_identity: str = "") -> FakeTarget:
        with self.changed:
            target = self.by_key[key] = FakeTarget(self, key, options, origin_identity)
            self.changed.notify_all()
        return target

    def descriptors(self) -> Sequence[tuple[int, int]]:
        return ((self._reads.fileno(), select.POLLIN),)

    def deadline(self, now: float) -> float:
        return float("inf")

    def service(self, ready: Mapping[int, int], now: float) -> Sequence[int]:
        self.services += 1
        if self._reads.fileno() in ready:
            with contextlib.suppress(BlockingIOError):
                self._reads.recv(65536)
        keys = []
        while self._roused:
            keys.append(self._roused.popleft())
        return keys

    def flush(self) -> None:
        assert not self.is_pool_closed

    def close(self) -> None:
        self.is_pool_closed = True

    # ---- for tests

    def rouse(self, key: int) -> None:
        self._roused.append(key)
        with contextlib.suppress(BlockingIOError):
            self._writes.send(b"x")

    def wait(self, condition: Any) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, WAIT_SECONDS), self.received

    def wait_received(self, name: str, count: int) -> list[bytes]:
        self.wait(lambda: len(self.received.get(name, ())) >= count)
        return self.received[name]

    def discard(self) -> None:
        self._reads.close()
        self._writes.close()


class FakeReader:
    """The reader's end of the channel.

    Attributes:
        frames: everything that the sink sent, in order.
    """

    def __init__(self, path: Path) -> None:
        self._listening = listen(path)
        self.channel: Channel | None = None
        self.frames: list[tuple[int, bytes]] = []

    def accept(self) -> FakeReader:
        select.select([self._listening], [], [], WAIT_SECONDS)
        self.channel = Channel(self._listening.accept()[0])
        return self

    def send(self, kind: int, payload: bytes = b"") -> None:
        assert self.channel is not None
        self.channel.send(kind, payload)
        self.channel.flush()
        assert not self.channel.has_queued()

    def wait(self, condition: Any) -> None:
        """Reads until a condition on what was reported holds."""
        assert self.channel is not None
        limit = time.monotonic() + WAIT_SECONDS
        while not condition():
            assert not self.channel.closed, self.kinds()
            assert time.monotonic() < limit, self.kinds()
            select.select([self.channel], [], [], 1.0)
            self.frames += self.channel.receive()

    def wait_kind(self, kind: int) -> bytes:
        """The first frame of a kind."""
        self.wait(lambda: self.of(kind))
        return self.of(kind)[0]

    def wait_settled(self, handle: int, count: int) -> list[int]:
        self.wait(lambda: len(self.settled(handle)) >= count)
        return self.settled(handle)

    def of(self, kind: int) -> list[bytes]:
        return [payload for each, payload in self.frames if each == kind]

    def kinds(self) -> list[str]:
        return [Kind(kind).name for kind, _ in self.frames]

    def settled(self, handle: int) -> list[int]:
        runs = [run for payload in self.of(Kind.SETTLE) for run in unpack_runs(payload)]
        return [at for each, first, last in runs if each == handle for at in range(first, last + 1)]

    def disposed(self) -> list[dict[str, Any]]:
        return [item for payload in self.of(Kind.DISPOSE) for item in unpack_json(payload)]

    def ready(self) -> list[int]:
        return [handle for payload in self.of(Kind.READY) for handle in unpack_numbers(payload)]

    def failed(self) -> dict[int, dict[str, Any]]:
        return {reported["handle"]: reported for reported in map(unpack_json, self.of(Kind.FAILED))}

    def flushed(self) -> list[tuple[int, dict[int, int]]]:
        return [unpack_flushed(payload) for payload in self.of(Kind.FLUSHED)]

    def open(self, handle: int, spec: RouteSpec, *, waits: bool = True) -> None:
        reported = {"handle": handle, "spec": spec.to_json(), "origin_identity": "source-1"}
        self.send(Kind.OPEN, pack_json(reported))
        if waits:
            self.wait(lambda: handle in self.ready())

    def fence(self, claim: str, seconds: float) -> None:
        until_ns = time.monotonic_ns() + int(seconds * 1e9)
        self.send(Kind.FENCE, pack_json({"claim": claim, "until_ns": until_ns}))

    def close_handle(self, handle: int) -> None:
        self.send(Kind.CLOSE, pack_numbers(handle))

    def close(self) -> None:
        if self.channel is not None:
            self.channel.close()

    def discard(self) -> None:
        self.close()
        self._listening.discard()


def spec(name: str, **settings: Any) -> RouteSpec:
    """A route to the fake entity of the same name."""
    return RouteSpec(name=name, source=End("fake", "a"), target=End("fake", "b", {"entity": name}), **settings)


def encoded(payloads: Sequence[bytes]) -> tuple[bytes, list[int]]:
    """Messages as Spark hands them over."""
    offsets = [0]
    for payload in payloads:
        offsets.append(offsets[-1] + len(payload))
    return b"".join(payloads), offsets
