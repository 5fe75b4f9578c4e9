"""Every kind of source to every kind of target: what is moved between real systems, and how it is counted.

What it is: `AnyToAny`, which starts the systems of some kinds and carries a route for each pair of them, all at once, by the bridge without
Spark, quietly or with every server killed once; the typed messages that it publishes, and the account of what arrived. What it is
not: a system (`SystemEnd`, modules `*_end`), nor the record that becomes a page (`any_record`).

Invariants:
    I1. A message counts as published when its source's system has acknowledged it, and as arrived when another client than the
        route's reads it at the target.
"""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Self
from uuid import UUID

import pytest
from azure.core.exceptions import AzureError

from harness.conformance import (
    artemis_end,
    eventgrid_end,
    eventhubs_end,
    http_end,
    kafka_end,
    queuestorage_end,
    rabbitmq_end,
    rabbitmq_streams_end,
    servicebus_end,
)
from harness.conformance.conformance_suite import quick_retries
from harness.matrix.any_record import Cell
from harness.server.artemis_broker import artemis
from harness.server.azurite_server import azurite
from harness.server.eventgrid_server import eventgrid_server
from harness.server.http_server import http_receiver
from harness.server.kafka_broker import broker
from harness.server.rabbitmq_server import rabbit_server
from isthmus.amqp import codec, section
from isthmus.amqp.types import Float, Int, Symbol, Timestamp, ULong
from isthmus.connectors.http.mapping import to_request
from isthmus.testing.bridge.join import Join
from isthmus.testing.bridge.message import key_of, number_of
from isthmus.testing.bridge.pair import Ability
from isthmus.testing.bridge.system_pair import SystemEnd, SystemPair
from isthmus.testing.port import free_port
from isthmus.testing.proxy import Proxy

__all__ = ["SOURCES", "TARGETS", "AnyToAny"]

UNORDERED = frozenset({"queuestorage", "eventgrid"})
# Without any arrival for so long, what has not arrived never arrives.
STILL_SECONDS = 60.0
LOOK_SECONDS = 1.0
# So slow are routes whose servers are killed: each has to be moving messages when its servers are killed and when they start again.
KILL_RATE = "30/s"
BEFORE_KILL = 60
POST_SECONDS = 60.0
# Kafka keeps a record for a week from the time that it bears.
CREATED_MS = int(time.time() * 1000)


@dataclass(slots=True)
class _Look:
    """What was seen of the messages of one pair."""

    changed: set[str] = field(default_factory=set)


# ---- the systems


class HttpPair(http_end.HttpEnd):
    """HTTP in both directions: as a source a listener, which is part of the route's reader."""

    def __init__(self, server: Any, folder: Path) -> None:
        super().__init__(server)
        self._folder = folder
        self._ports: dict[str, int] = {}

    def make(self, entity: str, side: str, settings: Mapping[str, Any]) -> dict[str, str]:
        """A path of the receiver, or a listener of its own port and folder."""
        if side == "target":
            return super().make(entity, side, settings)
        port = self._ports[entity] = free_port()
        return {"entity": "hook", "listen": f"127.0.0.1:{port}", "spool": str(self._folder / entity)}

    def proxy(self, entity: str) -> tuple[Proxy, dict[str, str]]:
        """A listener has no address to which a route connects."""
        if entity in self._ports:
            return Proxy(self._ports[entity]), {}
        return super().proxy(entity)

    def publish(self, entity: str, keys: Sequence[str], body: bytes, ttl_ms: int) -> None:
        """Posts messages one after the other, each until it is answered 200."""
        connection: http.client.HTTPConnection | None = None
        for key in keys:
            request = to_request(typed(key), "structured", "publisher")
            limit = time.monotonic() + POST_SECONDS
            while True:
                try:
                    if connection is None:
                        connection = http.client.HTTPConnection("127.0.0.1", self._ports[entity], timeout=30)
                    connection.request(
                        "POST", "/hook", request.body, {**request.headers, "webhook-id": request.event_id}
                    )
                    answer = connection.getresponse()
                    answer.read()
                    if answer.status == 200:
                        break
                except (OSError, http.client.HTTPException):
                    if connection is not None:
                        connection.close()
                    connection = None
                assert time.monotonic() < limit, f"{key}: the listener does not take it"
                time.sleep(0.1)
        if connection is not None:
            connection.close()


class PatientQueueStorageEnd(queuestorage_end.QueueStorageEnd):
    """Queue Storage whose queues are read only once nothing more comes: each look reads every message, and takes as long as moving it."""

    lanes = 1  # so many partitions has a log that is its target

    def __init__(self, server: Any) -> None:
        super().__init__(server)
        self._counts: dict[str, int] = {}
        self._keys: dict[str, Sequence[str]] = {}

    def release(self, entity: str) -> None:
        """Deletes a queue: Azurite has to read what it contains when it starts again."""
        with suppress(AzureError):
            self._client(queuestorage_end._name(entity)).delete_queue()
        super().release(entity)

    def arrived(self, entity: str) -> Sequence[str]:
        """What the queue contained when it had not changed from one call to the next."""
        count = self.left(entity)
        if count != self._counts.get(entity):
            self._counts[entity] = count
        elif count > len(self._keys.get(entity, ())):
            self._keys[entity] = super().arrived(entity)
        return self._keys.get(entity, ())


class OneLaneEventGridEnd(eventgrid_end.EventGridEnd):
    """Event Grid, whose targets that are logs have one partition."""

    lanes = 1


@contextmanager
def _kafka(folder: Path) -> Iterator[SystemEnd]:
    with broker(folder) as running, closing(kafka_end.KafkaEnd(running)) as end:
        yield end


@contextmanager
def _rabbitmq(folder: Path) -> Iterator[SystemEnd]:
    with rabbit_server(folder) as running, closing(rabbitmq_end.RabbitEnd(running)) as end:
        yield end


@contextmanager
def _rabbitmq_streams(folder: Path) -> Iterator[SystemEnd]:
    with rabbit_server(folder) as running, closing(rabbitmq_streams_end.RabbitStreamsEnd(running, folder)) as end:
        yield end


@contextmanager
def _amqp(folder: Path) -> Iterator[SystemEnd]:
    with artemis(folder) as running, closing(artemis_end.ArtemisEnd(running)) as end:
        yield end


@contextmanager
def _queuestorage(folder: Path) -> Iterator[SystemEnd]:
    with azurite(folder) as running, closing(PatientQueueStorageEnd(running)) as end:
        yield end


@contextmanager
def _eventgrid(folder: Path) -> Iterator[SystemEnd]:
    with eventgrid_server(folder) as running:
        yield OneLaneEventGridEnd(running)


@contextmanager
def _http(folder: Path) -> Iterator[SystemEnd]:
    with http_receiver(folder) as running:
        yield HttpPair(running, folder)


_OPENERS: Mapping[str, Callable[[Path], AbstractContextManager[SystemEnd]]] = {
    "servicebus": lambda folder: closing(servicebus_end.ServiceBusEnd(folder)),
    "eventhubs": lambda folder: closing(eventhubs_end.EventHubsEnd(folder)),
    "kafka": _kafka,
    "rabbitmq": _rabbitmq,
    "amqp": _amqp,
    "queuestorage": _queuestorage,
    "eventgrid": _eventgrid,
    "http": _http,
    "rabbitmq-streams": _rabbitmq_streams,
}
SOURCES = tuple(_OPENERS)
TARGETS = tuple(kind for kind in SOURCES if kind != "rabbitmq-streams")
"""Streams of RabbitMQ are read only."""
_MODULES: tuple[ModuleType, ...] = (
    artemis_end,
    eventgrid_end,
    eventhubs_end,
    http_end,
    kafka_end,
    queuestorage_end,
    rabbitmq_end,
    servicebus_end,
)


# ---- the messages


def typed(key: str, body: bytes = b"", created_ms: int = 0, ttl_ms: int = 0) -> bytes:
    """A message whose properties have the types that AMQP 1.0 gives them."""
    number = number_of(key)
    return section.encode_message(
        bytes(range(256)) + b"%d" % number,
        properties={
            "message_id": key,
            "subject": "flights",
            "correlation_id": f"c-{number}",
            "content_type": Symbol("application/octet-stream"),
            "creation_time": Timestamp(CREATED_MS + number),
        },
        application_properties={
            "text": f"Zürich {number}",
            "empty": "",
            "int": Int(-number),
            "long": (1 << 40) + number,
            "ulong": ULong((1 << 63) + number),
            "boolean": number % 2 == 0,
            "double": number / 10,
            "float": Float(number + 0.5),
            "timestamp": Timestamp(1_700_000_000_000 + number),
            "uuid": UUID(int=number),
            "binary": b"\xff\0%d" % number,
            "null": None,
        },
    )


def _differences(payload: bytes, expected: bytes) -> set[str]:
    """What of a message is not as it was sent."""
    found, wanted = section.locate(payload), section.locate(expected)
    changed: set[str] = set()
    if payload[slice(*found.body)] != expected[slice(*wanted.body)]:
        values = [
            codec.decode(each, sections.body[0] + 3)[0]
            for each, sections in ((payload, found), (expected, wanted))
            if sections.body[1]
        ]
        if len(values) < 2 or values[0] != values[1]:
            changed.add("body")
    pairs = (
        (section.decode_properties(payload, found.properties), section.decode_properties(expected, wanted.properties)),
        (
            section.decode_map(payload, found.application_properties),
            section.decode_map(expected, wanted.application_properties),
        ),
    )
    for has, had in pairs:
        for name, value in had.items():
            if name not in has or type(has[name]) is not type(value) or has[name] != value:
                changed.add(str(name).replace("_", "-"))
    return changed


# ---- the run


class AnyToAny:
    """The systems of some kinds, running; a context manager.

    Args:
        folder: of their data.
        kinds: which.
    """

    def __init__(self, folder: Path, kinds: Sequence[str] = SOURCES) -> None:
        self._folder = folder
        self._kinds = tuple(kinds)
        self._ends: dict[str, SystemEnd] = {}
        self._stack = ExitStack()
        self._looks: dict[str, _Look] = {}
        self._runs = 0

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            patch = stack.enter_context(pytest.MonkeyPatch.context())
            stack.enter_context(quick_retries())
            for module in _MODULES:
                if hasattr(module, "message"):
                    patch.setattr(module, "message", typed)
                patch.setattr(module, "key_of", self._seen)
            for kind in self._kinds:
                (self._folder / kind).mkdir()
                self._ends[kind] = stack.enter_context(_OPENERS[kind](self._folder / kind))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _seen(self, payload: bytes) -> str:
        """The key of a message that an end has read, which is compared with what was sent."""
        key = key_of(payload)
        look = self._looks.get(key.rpartition("/")[0])
        if look is not None:
            look.changed |= _differences(payload, typed(key))
        return key

    def move(self, source: str, targets: Sequence[str], count: int, *, kills: bool = False) -> dict[str, Cell]:
        """Moves so many messages from one kind to each of others, all at once.

        Args:
            source: the kind of the sources.
            targets: the kinds of the targets.
            count: of messages for each.
            kills: whether every server that the routes need is killed once while they move, and started again.

        Returns:
            By target.
        """
        self._runs += 1
        routes = {
            target: _Route(self._ends[source], self._ends[target], f"n{self._runs}.{source}-{target}", kills)
            for target in targets
        }
        self._looks |= {each.name: _Look() for each in routes.values()}
        threads = [threading.Thread(target=each.publish, args=(count,), daemon=True) for each in routes.values()]
        with ExitStack() as stack:
            for each in routes.values():
                stack.callback(each.close)
            if source != "http":  # a listener listens while its route is carried
                _run_all(threads)
            for each in routes.values():
                stack.enter_context(each.join)
            if source == "http":
                for thread in threads:
                    thread.start()
            if kills:
                self._kill(source, targets, routes.values())
            for thread in threads:
                if thread.is_alive():
                    thread.join(600)
            _wait_arrived(list(routes.values()))
            return {target: each.cell(self._looks[each.name].changed) for target, each in routes.items()}

    def _kill(self, source: str, targets: Sequence[str], routes: Any) -> None:
        """The source's server first, then those of all targets together, while every route moves messages."""
        for each in routes:
            _wait(lambda each=each: each.arrived_at_least(BEFORE_KILL), f"{each.name}: the first messages")
        if Ability.RESTARTS in self._ends[source].source_abilities:
            self._ends[source].restart()
        others = [self._ends[each] for each in targets if each != source or source == "http"]
        _run_all([threading.Thread(target=each.restart, daemon=True) for each in others])


class _Route:
    """One pair's route, and its account."""

    def __init__(self, source: SystemEnd, target: SystemEnd, name: str, kills: bool) -> None:
        self.name = name
        self._source, self._target = source, target
        self._pair = SystemPair(source, target, name)
        settings = {"rate": KILL_RATE} if kills else {}
        self._route = self._pair.route(name, target_seconds=120.0, **settings)
        self.join = Join((self._route,), self._pair.side)
        self.published: list[str] = []
        self.failure: BaseException | None = None
        self._seen: Sequence[str] = ()

    def publish(self, count: int) -> None:
        """Publishes so many messages; all of them, or it has failed."""
        try:
            self.published += self._pair.publish(self._route, 0, count)
        except BaseException as error:  # noqa: BLE001 - recorded with the cell
            self.failure = error

    def accepted(self) -> Sequence[str]:
        """Keys at the target; those that were seen last where its server does not answer."""
        with suppress(Exception):  # any error of a client whose server is being killed
            self._seen = self._pair.accepted(self._route)
        return self._seen

    def arrived_at_least(self, count: int) -> bool:
        """Whether so many messages have arrived."""
        if isinstance(self._target, PatientQueueStorageEnd):
            return self._target.left(f"{self.name}.{self.name}.target") >= count
        return len(self.accepted()) >= count

    @property
    def is_complete(self) -> bool:
        """Whether every message has arrived."""
        return len(set(self.accepted())) >= len(self.published) > 0

    def cell(self, changed: set[str]) -> Cell:
        """What became of its messages."""
        if self.failure is not None:
            raise AssertionError(f"{self.name}: publishing failed: {self.failure!r}") from self.failure
        accepted = list(self._pair.accepted(self._route))
        first = list(dict.fromkeys(accepted))
        unknown = set(first) - set(self.published)
        assert not unknown, f"{self.name}: {sorted(unknown)[:5]} were never published"
        behind, highest = 0, dict[int, int]()
        for key in first:
            lane, number = self._pair.lane(key), number_of(key)
            behind += number < highest.get(lane, -1)
            highest[lane] = max(highest.get(lane, -1), number)
        return Cell(
            sent=len(self.published),
            lost=len(set(self.published) - set(first)),
            duplicated=len(accepted) - len(first),
            out_of_order=behind,
            ordered=not UNORDERED & {self._source.kind, self._target.kind},
            changed=tuple(sorted(changed)),
        )

    def close(self) -> None:
        """Closes what it opened."""
        self._pair.close()


def _run_all(threads: Sequence[threading.Thread]) -> None:
    for each in threads:
        each.start()
    for each in threads:
        each.join(600)


def _wait(condition: Callable[[], bool], what: str, seconds: float = 180.0) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, f"waited {seconds:g} s in vain for {what}"
        time.sleep(0.1)


def _wait_arrived(routes: Sequence[_Route]) -> None:
    """Until everything has arrived, or nothing has for a while; then a look for second copies."""
    seen = -1
    changed_at = time.monotonic()
    while not all(each.is_complete or each.failure for each in routes):
        total = sum(len(each.accepted()) for each in routes)
        if total != seen:
            seen, changed_at = total, time.monotonic()
        if time.monotonic() - changed_at > STILL_SECONDS:
            return
        time.sleep(LOOK_SECONDS)
    time.sleep(LOOK_SECONDS)
