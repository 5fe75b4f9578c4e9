"""The ports of the connector `servicebus` against real namespaces, driven by one small loop as a host drives them."""

from __future__ import annotations

import os
import random
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus.management import ServiceBusAdministrationClient

from harness.bridge.port_host import Route, first_times, host, message_id
from isthmus.amqp import section
from isthmus.bridge.delivery_event import Granted, Lost, Opened, Outcome, Send
from isthmus.bridge.port import Arrived, Blocked, Drained, Exhausted, SourceLost, SourceOpened
from isthmus.bridge.refusal import RefusalKind
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
  cut: {max_delivery_count: 100}
  back: {max_delivery_count: 100}
  bound: {}
  torn-0: {lock_duration: 3s, max_delivery_count: 100}
  sink-torn-0: {}
  torn-0-05: {lock_duration: 3s, max_delivery_count: 100}
  sink-torn-0-05: {}
  torn-0-3: {lock_duration: 3s, max_delivery_count: 100}
  sink-torn-0-3: {}
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
    config = ENTITIES
    with namespace(config=config) as running:
        yield running


@pytest.fixture(autouse=True)
def _set_connection(served: NamespaceProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORT_TEST", served.connection_string)


def client_of(served: NamespaceProcess, path: str) -> Any:
    return open_client(endpoint_of_string(ConnectionString.parse(served.connection_string)), path, "test")


def fill(served: NamespaceProcess, path: str, count: int, first: int = 0) -> None:
    with client_of(served, path) as client:
        bodies = [
            section.encode_message(b"m%d" % n, properties={"message_id": f"m{n}"}) for n in range(first, first + count)
        ]
        Sender(client, path).wait_ready().send_all(bodies, batch=50)


def remaining(served: NamespaceProcess, path: str) -> list[str]:
    """The message ids of the contents of an entity."""
    found: list[str] = []
    with client_of(served, path) as client:
        node, start = Management(client, path), 0
        while page := node.peek(start, 250):
            found += map(message_id, page)
            start = (
                section.decode_map(page[-1], section.locate(page[-1]).message_annotations)["x-opt-sequence-number"] + 1
            )
    return found


def test_copies_in_order_and_settles(served: NamespaceProcess) -> None:
    fill(served, "a", 5000)
    with host() as loop:
        route = Route(loop, 1, "a", "b")
        loop.run(lambda: len(route.settled) >= 5000)
        route.source.drain()
        loop.run(lambda: loop.reported(1, Drained))
        assert loop.ids(1) == [f"m{n}" for n in range(5000)]
        assert isinstance(loop.events[1][0], SourceOpened)
        assert loop.events[1][0].identity
        assert route.source.clock_offset_ms is not None
    assert remaining(served, "a") == []
    assert remaining(served, "b") == [f"m{n}" for n in range(5000)]


def test_a_restart_in_the_middle_loses_nothing_and_keeps_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    config = "limits: {min_lock_duration: 1s}\nqueues:\n  a: {lock_duration: 4s, max_delivery_count: 100}\n  b: {}\n"
    with namespace(config=config) as running:
        monkeypatch.setenv("PORT_TEST", running.connection_string)
        fill(running, "a", 5000)
        with host() as loop:
            route = Route(loop, 1, "a", "b")
            loop.run(lambda: len(route.settled) >= 1500)
            running.kill()
            loop.run(lambda: loop.reported(1, SourceLost) and loop.reported(100_001, Lost))
            running.start()

            def done() -> bool:
                route.reopen()
                return len(route.settled) >= 5000

            loop.run(done, 60)
            assert not any(event.is_fatal for event in loop.reported(1, SourceLost))
        assert remaining(running, "a") == []
        assert first_times(remaining(running, "b")) == [f"m{n}" for n in range(5000)]


def cut(end: Any) -> None:
    """Breaks the connection of an end; its locks stay at the namespace."""
    with socket.socket(fileno=os.dup(end.client.fileno())) as sock:
        sock.shutdown(socket.SHUT_RDWR)


def test_positions_of_a_lost_link_are_settled_and_released_by_lock_token(served: NamespaceProcess) -> None:
    fill(served, "cut", 900)
    with host() as loop:
        source = loop.source(1, "cut")
        loop.run(lambda: loop.reported(1, SourceOpened))
        source.grant(900)
        loop.run(lambda: len(loop.ids(1)) == 900)
        source.settle(1, 10)
        loop.run_once(0)
        cut(source)
        loop.run(lambda: loop.reported(1, SourceLost))
        source.settle(11, 800)  # while it is away
        source.open()
        loop.run(lambda: len(loop.reported(1, SourceOpened)) == 2)
        source.release(891, 900)
        source.grant(10)
        loop.run(lambda: len(loop.ids(1)) == 910)
        assert loop.ids(1)[-10:] == [f"m{n}" for n in range(890, 900)]
        cut(source)
        loop.run(lambda: len(loop.reported(1, SourceLost)) == 2)
        source.open()
        source.settle(801, 900)
        loop.run(lambda: remaining(served, "cut") == [])


def test_old_locks_are_renewed_and_old_positions_may_come_again(served: NamespaceProcess) -> None:
    fill(served, "renewed", 500)
    with host() as loop:
        source = loop.source(1, "renewed")
        loop.run(lambda: loop.reported(1, SourceOpened))
        source.grant(500)
        loop.run(lambda: len(loop.ids(1)) == 500)
        cut(source)
        loop.run(lambda: loop.reported(1, SourceLost))
        source.open()
        until = time.monotonic() + 4.5
        loop.run(lambda: time.monotonic() > until)
        source.grant(1000)
        until = time.monotonic() + 0.5
        loop.run(lambda: time.monotonic() > until)
        assert len(loop.ids(1)) == 500  # a lock lasts 3 s
        cut(source)
        until = time.monotonic() + 4
        loop.run(lambda: time.monotonic() > until)
        source.open()
        loop.run(lambda: len(loop.reported(1, SourceOpened)) == 3)
        source.grant(1000)
        loop.run(lambda: len(loop.ids(1)) == 1000)
        assert loop.ids(1)[500:] == [f"m{n}" for n in range(500)]
        source.settle(0, 1 << 60)
        loop.run(lambda: remaining(served, "renewed") == [])


def test_locks_are_renewed_as_long_as_messages_are_unsettled(served: NamespaceProcess) -> None:
    fill(served, "renewed", 600)
    with host() as loop:
        source = loop.source(1, "renewed", ordered=False)
        loop.run(lambda: loop.reported(1, SourceOpened))
        source.grant(600)
        loop.run(lambda: len(loop.ids(1)) == 600)
        until = time.monotonic() + 5
        source.grant(10)
        loop.run(lambda: time.monotonic() > until)
        assert len(loop.ids(1)) == 600
        before = loop.polls
        assert before < 200
        for event in loop.reported(1, Arrived):
            for position in event.positions:
                source.settle(position, position)
        loop.run(lambda: remaining(served, "renewed") == [])


def test_nothing_is_given_behind_a_message_that_a_dead_reader_has_locked(served: NamespaceProcess) -> None:
    fill(served, "held", 100)
    with client_of(served, "held") as dead:
        reader = Receiver(dead, "held").wait_attached()
        reader.grant(3)
        dead.wait_until(lambda: reader.received == 3, 5, "three")
        with host() as loop:
            source = loop.source(1, "held")
            loop.run(lambda: loop.reported(1, SourceOpened))
            source.grant(1000)
            loop.run(lambda: loop.reported(1, Blocked))
            assert loop.reported(1, Blocked)[0].position == 1
            assert loop.ids(1) == []
            loop.run(lambda: len(loop.ids(1)) >= 100)
            assert loop.ids(1) == [f"m{n}" for n in range(100)]
            assert loop.reported(1, Blocked)[-1].position == 0
            source.settle(1, 100)
            loop.run(lambda: remaining(served, "held") == [])


def test_only_present_gives_what_was_there_and_no_more(served: NamespaceProcess) -> None:
    fill(served, "present", 300)
    with host() as loop:
        source = loop.source(1, "present", only_present=True)
        empty = loop.source(2, "empty", only_present=True)
        loop.run(lambda: loop.reported(1, SourceOpened) and loop.reported(2, SourceOpened))
        fill(served, "present", 50, 300)
        source.grant(1000)
        empty.grant(1000)
        loop.run(lambda: loop.reported(1, Exhausted) and loop.reported(2, Exhausted))
        assert loop.ids(1) == [f"m{n}" for n in range(300)]
        source.settle(1, 10_000)
        source.drain()
        loop.run(lambda: loop.reported(1, Drained))
        assert len(loop.reported(1, Exhausted)) == len(loop.reported(2, Exhausted)) == 1
    assert remaining(served, "present") == [f"m{n}" for n in range(300, 350)]


def test_only_present_waits_for_what_another_receiver_has_locked(served: NamespaceProcess) -> None:
    with client_of(served, "present") as other:
        taker = Receiver(other, "present").wait_attached()
        taker.grant(50)
        other.wait_until(lambda: taker.received == 50, 5, "what the test before left")
        with host() as loop:
            source = loop.source(1, "present", only_present=True)
            loop.run(lambda: loop.reported(1, SourceOpened))
            source.grant(1000)
            loop.run(lambda: loop.reported(1, Blocked))
            assert not loop.reported(1, Exhausted)
            for run in taker.take():
                taker.dispose(run.first_id, run.first_id + len(run.tags) - 1)
            other.flush()
            loop.run(lambda: loop.reported(1, Exhausted))


def test_an_entity_that_is_not_there_is_fatal_and_a_disabled_one_is_not(served: NamespaceProcess) -> None:
    with host() as loop:
        loop.source(1, "nowhere")
        loop.source(2, "closed")
        loop.target(3, "nowhere")
        loop.target(4, "closed")
        good = loop.source(5, "empty")
        loop.run(lambda: all(loop.events[key] for key in range(1, 6)))
        assert [loop.events[key][0].is_fatal for key in (1, 2)] == [True, False]
        assert [loop.events[key][0].refusal.kind for key in (3, 4)] == [RefusalKind.FATAL, RefusalKind.UNKNOWN]
        assert "nowhere" in loop.events[1][0].text
        assert isinstance(loop.events[5][0], SourceOpened)  # a fault of one link is no other's
        good.drain()
        loop.run(lambda: loop.reported(5, Drained))
        assert not loop.reported(5, SourceLost)


def test_a_namespace_that_is_not_there_is_lost_not_fatal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "PORT_TEST",
        "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=x;SharedAccessKey=eA==;UseDevelopmentEmulator=true;",
    )
    with host() as loop:
        loop.source(1, "a")
        loop.target(2, "a")
        loop.run(lambda: loop.events[1] and loop.events[2])
        assert isinstance(loop.events[1][0], SourceLost)
        assert not loop.events[1][0].is_fatal
        assert loop.events[2][0].refusal.kind is RefusalKind.UNKNOWN


def test_two_hundred_routes_share_one_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 200
    config = "queues:\n" + "".join(f"  s{n}: {{}}\n  t{n}: {{}}\n" for n in range(count))
    with namespace(config=config) as running:
        monkeypatch.setenv("PORT_TEST", running.connection_string)
        with host() as loop:
            routes = [Route(loop, n + 1, f"s{n}", f"t{n}", window=10) for n in range(count)]
            loop.run(lambda: all(loop.reported(n + 1, SourceOpened) for n in range(count)))
            loop.run(lambda: all(loop.reported(n + 100_001, Granted) for n in range(count)))
            assert len(loop.sources.descriptors()) == len(loop.targets.descriptors()) == 2
            before = loop.polls
            fill(running, "s7", 5)
            loop.run(lambda: len(routes[7].settled) == 5)
            assert loop.polls - before < 60  # of the ends that had something to report
            for n in range(0, count, 10):
                fill(running, f"s{n}", 5)
            loop.run(lambda: all(len(routes[n].settled) == 5 for n in range(0, count, 10)))
            assert not any(loop.reported(n + 1, SourceLost) for n in range(count))
            routes[7].source.close()
            del loop.ends[8]
            fill(running, "s8", 5)
            loop.run(lambda: len(routes[8].settled) == 5)


def test_a_subscription_and_its_dead_letters(served: NamespaceProcess) -> None:
    from isthmus.bridge.delivery_event import Disposition

    with host() as loop:
        source = loop.source(1, "flights/Subscriptions/all")
        dead = loop.source(2, "flights/Subscriptions/all/$deadletterqueue")
        target = loop.target(3, "flights")
        loop.run(
            lambda: loop.reported(1, SourceOpened) and loop.reported(2, SourceOpened) and loop.reported(3, Granted)
        )
        target.send(Send([section.encode_message(b"x", properties={"message_id": f"m{n}"}) for n in range(4)], True))
        source.grant(10)
        dead.grant(10)
        loop.run(lambda: len(loop.ids(1)) == 4 and loop.reported(3, Outcome))
        assert loop.reported(3, Outcome) == [Outcome(0, 0, None)]
        source.settle(1, 2)
        source.settle(3, 3, Disposition("dead-letter", "Bad", "it is bad"))
        source.settle(4, 4, Disposition("abandon"))
        loop.run(lambda: len(loop.ids(1)) == 5 and loop.ids(2) == ["m2"])
        assert loop.ids(1)[-1] == "m3"
        source.release(4, 4)
        loop.run(lambda: len(loop.ids(1)) == 6)
        source.settle(4, 4)
        dead.settle(1, 10)
        loop.run(lambda: not remaining(served, "flights/Subscriptions/all"))


def test_what_a_target_refuses_is_an_outcome(served: NamespaceProcess) -> None:
    with host() as loop:
        target = loop.target(1, "b")
        loop.run(lambda: loop.reported(1, Granted))
        limit = loop.reported(1, Opened)[0].message_bytes
        assert limit
        target.send(Send([section.encode_message(b"small"), section.encode_message(bytes(limit + 1))]))
        loop.run(
            lambda: (
                sum(event.last - event.first + 1 for event in loop.reported(1, Outcome)) == 2 or loop.reported(1, Lost)
            )
        )
        refused = [event for event in loop.reported(1, Outcome) if event.refusal is not None]
        assert [event.refusal.kind for event in refused] == [RefusalKind.MESSAGE]


def test_what_was_in_transit_goes_back_when_a_source_is_closed(served: NamespaceProcess) -> None:
    fill(served, "back", 500)
    with host() as loop:
        source = loop.source(1, "back")
        loop.run(lambda: loop.reported(1, SourceOpened))
        source.grant(400)
        loop.run(lambda: loop.ids(1))
        source.release(0, 1 << 60)
        source.close()
        del loop.ends[1]
        source = loop.source(2, "back")
        loop.run(lambda: loop.reported(2, SourceOpened))
        source.grant(1000)
        loop.run(lambda: len(loop.ids(2)) == 500, 8)  # much less than the lock duration
        assert loop.ids(2) == [f"m{n}" for n in range(500)]
        source.settle(0, 1 << 60)


def test_what_happens_to_one_entity_touches_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    config = "queues:\n  a: {}\n  b: {}\n  c: {}\n  d: {}\n"
    with namespace(config=config) as running:
        monkeypatch.setenv("PORT_TEST", running.connection_string)
        with host() as loop:
            closed, good = Route(loop, 1, "a", "b"), Route(loop, 2, "c", "d")
            loop.run(lambda: loop.reported(1, SourceOpened) and loop.reported(2, SourceOpened))
            with ServiceBusAdministrationClient.from_connection_string(
                running.admin_connection_string, connection_verify=str(running.ca_file)
            ) as admin:
                admin.delete_queue("a")
                loop.run(lambda: loop.reported(1, SourceLost))
                for _ in range(3):
                    count = len(loop.reported(1, SourceLost))
                    closed.source.open()
                    loop.run(lambda before=count: len(loop.reported(1, SourceLost)) > before)  # type: ignore[misc]
                assert loop.reported(1, SourceLost)[-1].is_fatal
                admin.create_queue("a")
            closed.source.open()
            fill(running, "a", 10)
            fill(running, "c", 10)
            loop.run(lambda: len(closed.settled) == len(good.settled) == 10)
            assert not loop.reported(2, SourceLost)
            assert not loop.reported(100_002, Lost)


def test_another_namespace_at_the_target_is_fatal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = "queues:\n  a: {}\n"
    with namespace(tmp_path / "one", config=config) as first:
        monkeypatch.setenv("PORT_TEST", first.connection_string)
        with host() as loop:
            target = loop.target(1, "a")
            loop.run(lambda: loop.reported(1, Granted))
            port = first.ports["amqp"]
            first.stop()
            loop.run(lambda: loop.reported(1, Lost))
            assert loop.reported(1, Lost)[0].refusal.kind is RefusalKind.UNKNOWN
            with namespace(tmp_path / "two", config=config, arguments=["--port", str(port)]) as second:
                monkeypatch.setenv("PORT_TEST", second.connection_string)
                target.open()
                loop.run(lambda: len(loop.reported(1, Lost)) == 2)
                assert loop.reported(1, Lost)[1].refusal.kind is RefusalKind.FATAL
                assert "another namespace" in loop.reported(1, Lost)[1].refusal.description


def test_a_target_that_is_the_source_is_fatal(served: NamespaceProcess) -> None:
    """With a wrong connection under an alias every message would come a second time, and the right namespace none."""
    with host() as loop:
        source = loop.source(1, "bound")
        loop.run(lambda: loop.reported(1, SourceOpened))
        (opened,) = loop.reported(1, SourceOpened)
        reported = {"origin": "ewr/Bound", "target": "jfk", "connection": "env:PORT_TEST", "entity": "bound"}
        loop._add(2, loop.targets.target(2, reported, origin_identity=opened.identity))
        other = reported | {"entity": "a"}
        loop._add(3, loop.targets.target(3, other, origin_identity=opened.identity))
        loop._add(4, loop.targets.target(4, reported, origin_identity="another"))
        loop.run(lambda: loop.reported(2, Lost) and loop.reported(3, Opened) and loop.reported(4, Opened))
        (lost,) = loop.reported(2, Lost)
        assert lost.refusal.kind is RefusalKind.FATAL
        assert "jfk leads to the namespace of ewr" in lost.refusal.description
        assert not loop.reported(2, Opened)
        source.close()


def test_credit_is_a_bound_and_drain_an_end(served: NamespaceProcess) -> None:
    fill(served, "bound", 300)
    with host() as loop:
        source = loop.source(1, "bound")
        source.grant(7)  # before it is open
        loop.run(lambda: len(loop.ids(1)) == 7)
        source.grant(50)
        source.drain()
        source.grant(20)  # waits for Drained
        loop.run(lambda: loop.reported(1, Drained))
        at = next(i for i, event in enumerate(loop.events[1]) if isinstance(event, Drained))
        before = sum(len(event.positions) for event in loop.events[1][:at] if isinstance(event, Arrived))
        assert before <= 57
        loop.run(lambda: len(loop.ids(1)) == before + 20)
        until = time.monotonic() + 0.5
        loop.run(lambda: time.monotonic() > until)
        assert loop.ids(1) == [f"m{n}" for n in range(before + 20)]
        iterations = loop.iterations
        until = time.monotonic() + 1
        loop.run(lambda: time.monotonic() > until)
        assert loop.iterations - iterations < 10  # an idle loop sleeps
        source.release(0, 1 << 60)
        source.drain()
        loop.run(lambda: len(loop.reported(1, Drained)) == 2)


@pytest.mark.parametrize("seconds", [0.0, 0.05, 0.3])
def test_connections_that_break_again_and_again_lose_nothing(served: NamespaceProcess, seconds: float) -> None:
    name = f"torn-{seconds:g}".replace(".", "-")
    fill(served, name, 3000)
    with host() as loop:
        route = Route(loop, 1, name, "sink-" + name, window=400)
        chance = random.Random(5)
        breaks = 0
        cut_at = time.monotonic() + 0.3

        def done() -> bool:
            nonlocal breaks, cut_at
            route.reopen()
            now = time.monotonic()
            if breaks < 8 and now > cut_at and route.source.client is not None and route.target.client is not None:
                breaks += 1
                cut_at = now + seconds + chance.random() / 5
                cut(chance.choice([route.source, route.target]))
            return len(route.settled) >= 3000

        def is_empty() -> bool:
            route.reopen()  # the last cut may have come with the last message
            return remaining(served, name) == []

        loop.run(done, 60)
        loop.run(is_empty)
    assert first_times(remaining(served, "sink-" + name)) == [f"m{n}" for n in range(3000)]


def test_a_wrong_key_is_fatal_and_leaves_the_connection(
    served: NamespaceProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = re.sub("SharedAccessKey=[^;]*", "SharedAccessKey=d3Jvbmc=", served.connection_string)
    monkeypatch.setenv("PORT_TEST", key)
    with host() as loop:
        source = loop.source(1, "a")
        loop.run(lambda: loop.reported(1, SourceLost))
        assert loop.reported(1, SourceLost)[0].is_fatal
        assert "d3Jvbmc" not in loop.reported(1, SourceLost)[0].text
        before = loop.sources.descriptors()
        source.open()
        loop.run(lambda: len(loop.reported(1, SourceLost)) == 2)
        assert loop.reported(1, SourceLost)[1].is_fatal
        assert [descriptor for descriptor, _ in loop.sources.descriptors()] == [descriptor for descriptor, _ in before]
