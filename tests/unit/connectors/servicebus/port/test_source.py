"""A source against a fake broker, driven by a loop as in a host."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from isthmus.amqp import section
from isthmus.bridge.port import Arrived, Exhausted, SourceLost, SourceOpened
from isthmus.connectors.servicebus.port.connector import ServiceBusSources
from isthmus.errors import ConnectionLostError
from isthmus.testing import peer as peer_module
from isthmus.testing.peer import Peer


@pytest.fixture(name="peer")
def _peer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Peer]:
    with Peer("q") as peer:
        place = f"Endpoint=sb://127.0.0.1:{peer.port}/;SharedAccessKeyName=a;SharedAccessKey=b;"
        monkeypatch.setenv("PLACE", place + "UseDevelopmentEmulator=true")
        yield peer


class Loop:
    """One source and its loop."""

    def __init__(self, entity: str = "q", **settings: bool) -> None:
        self.pool = ServiceBusSources()
        self.source = self.pool.source(1, {"connection": "env:PLACE", "entity": entity}, **settings)
        self.events: list[Any] = []
        self.source.open()

    def until(self, condition: Callable[[], bool]) -> None:
        limit = time.monotonic() + 20
        while not condition():
            assert time.monotonic() < limit, self.events
            poll = select.poll()
            for descriptor, events in self.pool.descriptors():
                poll.register(descriptor, events)
            now = time.monotonic()
            due = min(self.pool.deadline(now), self.source.deadline(now), now + 0.1)
            self.pool.service(dict(poll.poll(max(0.0, due - now) * 1000)), time.monotonic())
            self.events += self.source.poll(time.monotonic())
            self.pool.flush()

    def has(self, kind: type) -> bool:
        return any(isinstance(event, kind) for event in self.events)

    def close(self) -> None:
        self.source.close()
        self.pool.close()


def test_what_waits_for_a_look_that_fails_goes_back_i5(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lock would last for its whole duration, and everything later would wait for it."""
    manage = peer_module._Served._manage

    def refuse(served: Any, queue: Any, operation: str, body: Any) -> tuple[int, Any]:
        return (401, None) if operation.endswith("peek-message") else manage(served, queue, operation, body)

    monkeypatch.setattr(peer_module._Served, "_manage", refuse)
    with peer.lock:
        for _ in range(4):
            peer.queues["q"].put(section.encode_message(b"x"))
        peer.queues["q"].waiting.remove(2)
    loop = Loop(ordered=True)
    loop.until(lambda: loop.has(SourceOpened))
    loop.source.grant(10)
    loop.until(lambda: loop.has(SourceLost))
    loop.pool.flush()
    given = [position for event in loop.events if isinstance(event, Arrived) for position in event.positions]
    assert set(given) <= {1}
    peer.wait_for(lambda: set(peer.queues["q"].locked) == set(given))
    loop.close()


def test_what_was_given_and_not_settled_goes_back_with_the_end_i5(peer: Peer) -> None:
    """An owner whose opening ends during a poll never takes the rest of its events."""
    with peer.lock:
        for _ in range(3):
            peer.queues["q"].put(section.encode_message(b"x"))
    loop = Loop(ordered=False)
    loop.until(lambda: loop.has(SourceOpened))
    loop.source.grant(10)
    loop.until(lambda: sum(len(event.positions) for event in loop.events if isinstance(event, Arrived)) == 3)
    loop.source.settle(1, 1)
    loop.close()
    peer.wait_for(lambda: not peer.queues["q"].locked)
    assert peer.queues["q"].fates == {1: "completed", 2: "released", 3: "released"}


@pytest.mark.parametrize(("entity", "keeps_times"), [("q", False), ("q/$DeadLetterQueue", True)])
def test_a_dead_letter_queue_shows_that_its_messages_keep_their_times(
    monkeypatch: pytest.MonkeyPatch, entity: str, keeps_times: bool
) -> None:
    with Peer(entity) as peer:
        place = f"Endpoint=sb://127.0.0.1:{peer.port}/;SharedAccessKeyName=a;SharedAccessKey=b;"
        monkeypatch.setenv("PLACE", place + "UseDevelopmentEmulator=true")
        loop = Loop(entity)
        loop.until(lambda: loop.has(SourceOpened))
        assert [each.keeps_times for each in loop.events] == [keeps_times]
        loop.close()


def test_i4_the_end_is_reported_again_after_a_lost_link(peer: Peer) -> None:
    """What was settled in between may be delivered again: its lock may have ended."""
    with peer.lock:
        peer.queues["q"].put(section.encode_message(b"x"))
    loop = Loop(only_present=True)
    loop.until(lambda: loop.has(SourceOpened))
    loop.source.grant(10)
    loop.until(lambda: loop.has(Exhausted))
    loop.source.fail(ConnectionLostError("gone"))  # type: ignore[attr-defined]
    loop.until(lambda: loop.has(SourceLost))
    [lost] = [each for each in loop.events if isinstance(each, SourceLost)]
    assert lost.voids_end
    loop.events.clear()
    loop.source.open()
    loop.until(lambda: loop.has(SourceOpened))
    assert not loop.has(Exhausted)
    loop.source.settle(1, 1)
    loop.source.grant(10)
    loop.until(lambda: loop.has(Exhausted))
    loop.close()
