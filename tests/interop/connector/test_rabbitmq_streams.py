"""Streams of a real RabbitMQ as a source: order, checkpoints, the death of the server, retention, and a stream that was made again."""

from __future__ import annotations

import select
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.client.rabbitmq_client import RabbitClient
from harness.conformance.rabbitmq_end import DURABLE_SECONDS
from harness.server.rabbitmq_server import PASSWORD, USER, RabbitServer, rabbit_server
from isthmus.bridge import registry
from isthmus.bridge.delivery_event import Disposition
from isthmus.bridge.port import Arrived, Drained, Exhausted, SourceLost, SourceOpened
from isthmus.connectors.checkpoint.checkpoint import Checkpoint
from isthmus.connectors.rabbitmq.protocol.property import Record
from isthmus.connectors.rabbitmq_streams.administration import StreamAdministration
from isthmus.connectors.rabbitmq_streams.system import SYSTEM
from isthmus.errors import IsthmusError
from isthmus.topology.planning.change import Change
from isthmus.topology.state import GroupState, LogState

WAIT_SECONDS = 120.0
GROUP = "isthmus"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitServer]:
    with rabbit_server(tmp_path_factory.mktemp("rabbitmq")) as running:
        yield running


@pytest.fixture(autouse=True)
def password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RABBIT_PASSWORD", PASSWORD)


class Reader:
    """A source and its pool, served until something has happened."""

    def __init__(self, options: dict[str, str], **settings: Any) -> None:
        self.pool: Any = registry.connector("rabbitmq-streams").sources()
        self.end: Any = self.pool.source(1, options, **settings)
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

    def serve(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        self.events = self.wait(lambda _: time.monotonic() >= until)

    def wait_for(self, kind: type) -> Any:
        return next(each for each in self.wait(lambda found: any(type(e) is kind for e in found)) if type(each) is kind)

    def positions(self, count: int) -> list[int]:
        found = self.wait(lambda events: sum(len(e.positions) for e in events if type(e) is Arrived) >= count)
        return [position for each in found if type(each) is Arrived for position in each.positions]

    def close(self) -> None:
        self.end.close()
        self.pool.close()


@pytest.fixture
def reader() -> Iterator[Callable[..., Reader]]:
    made: list[Reader] = []

    def make(*arguments: Any, **settings: Any) -> Reader:
        made.append(Reader(*arguments, **settings))
        return made[-1]

    yield make
    for each in made:
        each.close()


def options_of(server: RabbitServer, folder: Path) -> dict[str, str]:
    return {
        "host": f"127.0.0.1:{server.port}",
        "username": USER,
        "password": "env:RABBIT_PASSWORD",
        "checkpoints": str(folder),
        "management": f"http://127.0.0.1:{server.management_port}",
    }


def reported(server: RabbitServer, folder: Path, stream: str, **others: str) -> dict[str, str]:
    return options_of(server, folder) | {"topic": stream, "checkpoint_seconds": "0.05"} | others


def publish(server: RabbitServer, stream: str, start: int, stop: int, size: int = 0) -> None:
    with RabbitClient(server.port) as client:
        client.publish([Record(b"#%d|" % number + b"x" * size, routing_key=stream) for number in range(start, stop)])


def delete(server: RabbitServer, stream: str) -> None:
    server.call("DELETE", f"queues/%2F/{stream}")


def test_what_was_settled_is_not_read_again_and_all_else_is_in_order(
    server: RabbitServer, tmp_path: Path, reader: Callable[..., Reader]
) -> None:
    """I1, I2."""
    stream = server.queue("resumed", "stream")
    publish(server, stream, 0, 100)
    first = reader(reported(server, tmp_path, stream))
    first.wait_for(SourceOpened)
    first.end.grant(60)
    assert first.positions(60) == list(range(60))
    first.end.settle(0, 39)
    first.close()
    assert SYSTEM.waiting(options_of(server, tmp_path), stream, GROUP).messages == 60
    second = reader(reported(server, tmp_path, stream))
    second.wait_for(SourceOpened)
    second.end.grant(1000)
    assert second.positions(60) == list(range(40, 100))


def test_what_is_given_back_comes_again_in_order(
    server: RabbitServer, tmp_path: Path, reader: Callable[..., Reader]
) -> None:
    stream = server.queue("given_back", "stream")
    publish(server, stream, 0, 50)
    source = reader(reported(server, tmp_path, stream))
    source.wait_for(SourceOpened)
    source.end.grant(20)
    assert source.positions(20) == list(range(20))
    source.end.settle(0, 4)
    source.end.drain()
    source.wait_for(Drained)
    source.end.release(5, 9)
    source.end.grant(35)
    assert source.positions(35) == [*range(5, 10), *range(20, 50)]


def test_a_stream_that_was_made_again_is_not_read(
    server: RabbitServer, tmp_path: Path, reader: Callable[..., Reader]
) -> None:
    """I4."""
    stream = server.queue("again", "stream")
    publish(server, stream, 0, 10)
    first = reader(reported(server, tmp_path, stream))
    first.wait_for(SourceOpened)
    first.end.grant(10)
    first.positions(10)
    first.end.settle(0, 4)
    first.close()
    delete(server, stream)
    server.queue(stream, "stream")
    empty = reader(reported(server, tmp_path, stream))
    lost = empty.wait_for(SourceLost)
    assert not lost.is_fatal
    assert "returns nothing, although it was read up to offset 4" in lost.text
    publish(server, stream, 100, 103)
    shorter = reader(reported(server, tmp_path, stream)).wait_for(SourceLost)
    assert shorter.is_fatal
    assert "its last offset is 2, and it was read up to 4" in shorter.text
    publish(server, stream, 103, 120)
    other = reader(reported(server, tmp_path, stream)).wait_for(SourceLost)
    assert other.is_fatal
    assert "the message at offset 4 differs from" in other.text
    assert str(tmp_path) in other.text


def test_what_the_retention_removed_is_reported_with_its_range(
    server: RabbitServer, tmp_path: Path, reader: Callable[..., Reader]
) -> None:
    """I3."""
    stream = server.queue("removed", "stream", max_length_bytes=50_000, stream_max_segment_size_bytes=20_000)
    publish(server, stream, 0, 10, 1000)
    first = reader(reported(server, tmp_path, stream))
    first.wait_for(SourceOpened)
    first.end.grant(5)
    first.positions(5)
    first.end.settle(0, 4)
    first.close()
    for start in range(10, 1000, 50):
        publish(server, stream, start, start + 50, 1000)
    source = reader(reported(server, tmp_path, stream))
    publish(server, stream, 1000, 1010)  # the retention may leave none
    texts: list[str] = []
    found: list[int] = []
    # The loss is found at the opening or behind it; the retention continues in the background, and its next loss is reported with the next.
    while len(found) < 3 or not texts:
        for event in source.wait(bool):
            if type(event) is SourceOpened:
                source.end.grant(10)
            elif type(event) is SourceLost:
                assert not event.is_fatal
                texts.append(event.text)
                found = []
                source.end.open()
            elif type(event) is Arrived:
                found += event.positions
    assert "offsets 5 to" in texts[0]
    assert f" to {found[0] - 1} were removed" in texts[-1]
    assert len(set(found)) == len(found)


def test_what_the_retention_removed_does_not_wait(server: RabbitServer, tmp_path: Path) -> None:
    stream = server.queue("counted", "stream", max_length_bytes=50_000, stream_max_segment_size_bytes=20_000)
    for start in range(0, 500, 50):
        publish(server, stream, start, start + 50, 1000)
    publish(
        server, stream, 500, 510
    )  # the retention may leave none of those before, and then there is no last one to be found
    limit = time.monotonic() + WAIT_SECONDS  # the retention removes in the background
    while not 0 < SYSTEM.waiting(options_of(server, tmp_path), stream, GROUP).messages < 200:
        assert time.monotonic() < limit


@pytest.mark.soak
def test_nothing_is_lost_where_the_server_is_killed_under_load(
    server: RabbitServer, tmp_path: Path, reader: Callable[..., Reader]
) -> None:
    stream, made_at = server.queue("killed", "stream"), time.monotonic()
    confirmed = 0
    ends = threading.Event()

    def load() -> None:
        nonlocal confirmed
        while not ends.is_set():
            try:
                SYSTEM.check(
                    options_of(server, tmp_path), stream, reads=True
                )  # before it is ready, what is published is dropped
                publish(server, stream, confirmed, confirmed + 100)
                confirmed += 100
            except (OSError, EOFError, IsthmusError):
                ends.wait(0.1)

    thread = threading.Thread(target=load)
    thread.start()
    bodies: dict[int, bytes] = {}
    kills = 0
    try:
        source = reader(reported(server, tmp_path, stream))
        limit = time.monotonic() + 3 * WAIT_SECONDS
        while kills < 2 or not ends.is_set() or not _numbers(bodies.values()) >= set(range(confirmed)):
            assert time.monotonic() < limit, (kills, len(bodies), confirmed)
            for each in source.wait(bool):
                if type(each) is SourceLost:
                    assert not each.is_fatal, each.text
                    source.end.open()
                elif type(each) is SourceOpened:
                    source.end.grant(1000)
                elif type(each) is Arrived:
                    assert list(each.positions) == sorted(each.positions)
                    for position, payload in zip(each.positions, each.payloads, strict=True):
                        assert bodies.setdefault(position, payload) == payload
                    source.end.settle(each.positions[0], each.positions[-1])
                    source.end.grant(1000)
            if kills < 2 and len(bodies) > 2000 * (kills + 1) and time.monotonic() > made_at + DURABLE_SECONDS:
                server.stop(signal.SIGKILL)
                server.start()
                kills += 1
            elif kills == 2 and len(bodies) > 6000:
                ends.set()
                thread.join(WAIT_SECONDS)
                publish(server, stream, confirmed, confirmed + 1)  # it ends the waiting
    finally:
        ends.set()
        thread.join(WAIT_SECONDS)


def _numbers(payloads: Iterable[bytes]) -> set[int]:
    """What was published: the end of each message."""
    return {int(payload.rpartition(b"#")[2].rstrip(b"|")) for payload in payloads}


def test_only_what_is_present_is_read(server: RabbitServer, tmp_path: Path, reader: Callable[..., Reader]) -> None:
    stream = server.queue("present", "stream")
    publish(server, stream, 0, 20)
    source = reader(reported(server, tmp_path, stream), only_present=True)
    source.wait_for(SourceOpened)
    publish(server, stream, 20, 30)
    source.end.grant(1000)
    found = source.wait(lambda events: any(type(each) is Exhausted for each in events))
    assert [position for each in found if type(each) is Arrived for position in each.positions] == list(range(20))


def test_what_is_set_aside_is_settled_once_its_copy_is_confirmed(
    server: RabbitServer, tmp_path: Path, reader: Callable[..., Reader]
) -> None:
    stream, dead = server.queue("refused", "stream"), server.queue("refused.dead")
    publish(server, stream, 0, 3)
    source = reader(reported(server, tmp_path, stream, dead_letter_topic=dead))
    source.wait_for(SourceOpened)
    source.end.grant(3)
    source.positions(3)
    source.end.settle(0, 0)
    source.end.settle(1, 1, Disposition("dead-letter", "Wrong", "it is wrong"))
    source.end.settle(2, 2)
    limit = time.monotonic() + WAIT_SECONDS
    while SYSTEM.waiting(options_of(server, tmp_path), stream, GROUP).messages:
        assert time.monotonic() < limit
        source.serve(0.2)
    with RabbitClient(server.port) as client:
        assert [record.body for record in client.take(dead)] == [b"#1|"]


def test_the_end_waits_for_the_copies_of_what_was_set_aside(
    server: RabbitServer, tmp_path: Path, reader: Callable[..., Reader]
) -> None:
    stream, dead = server.queue("refused_last", "stream"), server.queue("refused_last.dead")
    publish(server, stream, 0, 300, 20_000)  # much waits, and the confirms are behind it
    source = reader(reported(server, tmp_path, stream, dead_letter_topic=dead))
    source.wait_for(SourceOpened)
    source.end.grant(10)
    source.positions(10)
    source.end.settle(0, 8)
    source.end.settle(9, 9, Disposition("dead-letter", "Wrong", "it is wrong"))
    source.close()
    assert source.end.has_left
    assert SYSTEM.waiting(options_of(server, tmp_path), stream, GROUP).messages == 290
    with RabbitClient(server.port) as client:
        assert len(client.take(dead)) == 1


def test_apply_makes_the_stream_and_its_checkpoint(server: RabbitServer, tmp_path: Path) -> None:
    made = StreamAdministration(options_of(server, tmp_path))
    wanted = LogState(name="applied", groups=(GroupState(name="g", start="now"),))
    assert made.observe("lga", [wanted]).log("applied") is None
    made.make(Change(alias="lga", action="create", kind="log", topic="applied", after=LogState(name="applied")))
    publish(server, "applied", 0, 5)
    group = GroupState(name="g", start="now")
    made.make(Change(alias="lga", action="create", kind="group", topic="applied", subscription="g", after=group))
    found = made.observe("lga", [wanted]).log("applied")
    assert found is not None
    assert found.has_group("g")
    publish(server, "applied", 5, 8)
    assert SYSTEM.waiting(options_of(server, tmp_path), "applied", "g").messages == 3
    peek = SYSTEM.peek(options_of(server, tmp_path), "applied")
    assert len(SYSTEM.uncommitted(options_of(server, tmp_path), "applied", "g", peek)(0, 10)) == 3
    assert Checkpoint(4).sequence == 4
