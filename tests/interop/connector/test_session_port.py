"""A source of the connector `servicebus` that requires sessions, against real namespaces: order in each session, whatever happens."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.bridge.port_host import Route, first_times, host, message_id
from isthmus.amqp import section
from isthmus.bridge.port import Arrived, Drained, Exhausted, SourceLost
from isthmus.connectors.servicebus.connect import endpoint_of_string, open_client
from isthmus.connectors.servicebus.connection_string import ConnectionString
from isthmus.connectors.servicebus.port.session import scheduler
from isthmus.connectors.servicebus.port.session.link import SessionLink
from isthmus.testing.namespace import NamespaceProcess, namespace
from isthmus.transport import Management, Receiver, Sender

ENTITIES = """
limits: {min_lock_duration: 1s}
queues:
  plain: {}
  to: {requires_session: true}
  many: {requires_session: true, max_delivery_count: 100}
  tomany: {requires_session: true}
  hot: {requires_session: true, max_delivery_count: 100}
  tohot: {requires_session: true}
  a: {requires_session: true, max_delivery_count: 100}
  held: {requires_session: true, max_delivery_count: 100}
  toheld: {requires_session: true}
  brief: {requires_session: true, lock_duration: 1s, max_delivery_count: 100}
  tobrief: {requires_session: true}
  renewed: {requires_session: true, lock_duration: 1s, max_delivery_count: 100}
  closed: {requires_session: true}
  stuck: {requires_session: true}
  present: {requires_session: true}
  topresent: {requires_session: true}
topics:
  flights:
    subscriptions:
      legs: {requires_session: true}
"""


@pytest.fixture(scope="module")
def served() -> Iterator[NamespaceProcess]:
    with namespace(config=ENTITIES) as running:
        yield running


@pytest.fixture(autouse=True)
def _set_connection(served: NamespaceProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORT_TEST", served.connection_string)


def client_of(served: NamespaceProcess, path: str) -> Any:
    return open_client(endpoint_of_string(ConnectionString.parse(served.connection_string)), path, "test")


def fill(served: NamespaceProcess, path: str, names: Sequence[str]) -> None:
    """Sends messages named SESSION/NUMBER, in this order."""
    with client_of(served, path) as client:
        bodies = [
            section.encode_message(b"x", properties={"message_id": name, "group_id": name.partition("/")[0]})
            for name in names
        ]
        Sender(client, path).wait_ready().send_all(bodies, batch=50)


def remaining(served: NamespaceProcess, path: str) -> list[str]:
    found: list[str] = []
    with client_of(served, path) as client:
        node, start = Management(client, path), 0
        while page := node.peek(start, 250):
            found += map(message_id, page)
            last = section.decode_map(page[-1], section.locate(page[-1]).message_annotations)
            start = last["x-opt-sequence-number"] + 1
    return found


def interleaved(sessions: int, count: int, prefix: str = "s") -> list[str]:
    return [f"{prefix}{session}/{number}" for number in range(count) for session in range(sessions)]


def check_order(names: Sequence[str]) -> None:
    """First arrivals of each session are in the session's order, without a gap."""
    found: dict[str, list[int]] = defaultdict(list)
    for name in first_times(list(names)):
        session, _, number = name.partition("/")
        found[session].append(int(number))
    for session, numbers in found.items():
        assert numbers == list(range(len(numbers))), session


def session_of(message: bytes) -> Any:
    return section.decode_properties(message, section.locate(message).properties).get("group_id")


def test_sessions_keep_their_order_and_their_names(served: NamespaceProcess) -> None:
    names = interleaved(20, 30)
    fill(served, "a", names)
    with host() as made:
        route = Route(made, 1, "a", "to", sessions=4)
        made.run(lambda: len(route.settled) == len(names))
    arrived = remaining(served, "to")
    assert sorted(arrived) == sorted(names)
    check_order(arrived)
    assert remaining(served, "a") == []
    with client_of(served, "to") as client:
        assert {session_of(each) for each in Management(client, "to").peek(0, 20)} <= {f"s{n}" for n in range(20)}


def test_a_thousand_sessions_over_few_links(served: NamespaceProcess) -> None:
    names = interleaved(1000, 3)
    fill(served, "many", names)
    with host() as made:
        route = Route(made, 1, "many", "tomany", sessions=16)
        made.run(lambda: len(route.settled) == len(names), 60.0)
    check_order(remaining(served, "tomany"))
    assert remaining(served, "many") == []


def test_a_busy_session_keeps_none_of_the_others_waiting_i2(
    served: NamespaceProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More sessions are busy than may be locked, and small ones come behind them."""
    monkeypatch.setattr(scheduler, "SLICE_SECONDS", 0.05)
    busy = interleaved(3, 600, "hot")
    small = interleaved(100, 1, "small")
    fill(served, "hot", [*busy, *small])
    with host() as made:
        route = Route(made, 1, "hot", "tohot", window=64, sessions=2)
        made.run(lambda: len(route.settled) == len(busy) + len(small), 60.0)
    arrived = remaining(served, "tohot")
    check_order(arrived)
    last_small = max(at for at, name in enumerate(arrived) if name.startswith("small"))
    assert last_small < len(arrived) - 1


def test_sessions_that_cannot_be_given_back_keep_no_other_from_coming(
    served: NamespaceProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """scheduler I1: of all that are locked the target refuses the first message, and shows only by one of another session that it takes others."""
    monkeypatch.setattr(scheduler, "SLICE_SECONDS", 0.2)
    monkeypatch.setattr(scheduler, "STUCK_SECONDS", 0.1)
    fill(served, "stuck", interleaved(5, 2))
    with host() as made:
        source = made.source(1, "stuck", sessions=2)
        made.run(lambda: made.events[1])
        source.grant(20)
        made.run(lambda: len({name.partition("/")[0] for name in made.ids(1)}) == 5, 10.0)
        assert len(source._links) <= 2 + scheduler.SPARE_SESSIONS
        source.settle(0, 1 << 40)
        made.run(lambda: remaining(served, "stuck") == [], 10.0)
    check_order(made.ids(1))


def test_a_session_that_another_receiver_has_locked_is_waited_for_and_the_others_continue(
    served: NamespaceProcess,
) -> None:
    fill(served, "held", interleaved(5, 4))
    with client_of(served, "held") as client:
        other = Receiver(client, "held", in_session=True, session_id="s2").wait_attached()
        with host() as made:
            route = Route(made, 1, "held", "toheld", sessions=4)
            made.run(lambda: len(route.settled) == 16)
            assert {name.partition("/")[0] for name in remaining(served, "toheld")} == {"s0", "s1", "s3", "s4"}
            other.close()
            client.flush()
            made.run(lambda: len(route.settled) == 20)
    check_order(remaining(served, "toheld"))


def test_a_lock_is_renewed_as_long_as_messages_are_unsettled(served: NamespaceProcess) -> None:
    fill(served, "renewed", interleaved(2, 3))
    with host() as made:
        source = made.source(1, "renewed", sessions=2)
        made.run(lambda: made.events[1])
        source.grant(10)
        made.run(lambda: len(made.ids(1)) == 6)
        until = time.monotonic() + 2.5
        made.run(lambda: time.monotonic() >= until)
        source.settle(0, 1 << 40)
        until = time.monotonic() + 0.3
        made.run(lambda: time.monotonic() >= until)
        assert len(made.ids(1)) == 6
    assert remaining(served, "renewed") == []


def test_what_was_in_flight_when_a_session_was_lost_is_settled_over_its_next_link_i3(
    served: NamespaceProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = interleaved(3, 10)
    fill(served, "brief", names)
    renew = SessionLink.renew
    monkeypatch.setattr(SessionLink, "renew", lambda *args: None)
    with host() as made:
        source = made.source(1, "brief", sessions=3)
        made.run(lambda: made.events[1])
        source.grant(100)
        made.run(lambda: len(made.ids(1)) == 30)
        first = {int(at) for event in made.reported(1, Arrived) for at in event.positions}
        made.run(lambda: len(made.ids(1)) > 30)  # the lock is lost, and what was not settled comes again
        monkeypatch.setattr(SessionLink, "renew", renew)
        made.run(lambda: len(made.ids(1)) >= 60)
        again = {int(at) for event in made.reported(1, Arrived) for at in event.positions}
        assert again == first
        source.settle(min(first), max(first))
        made.run(lambda: not source._account.unsettled)
        until = time.monotonic() + 1.3
        made.run(lambda: time.monotonic() >= until)
        assert made.reported(1, SourceLost) == []
    assert remaining(served, "brief") == []


def test_restarts_lose_nothing_and_keep_the_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = "queues: {a: {requires_session: true, max_delivery_count: 100}, b: {requires_session: true}}"
    names = interleaved(40, 50)
    with namespace(config=config) as running:
        monkeypatch.setenv("PORT_TEST", running.connection_string)
        fill(running, "a", names)
        with host() as made:
            route = Route(made, 1, "a", "b", window=200, sessions=8)
            for share in (0.3, 0.7, 1.0):

                def has_moved(share: float = share) -> bool:
                    route.reopen()
                    return len(route.settled) >= share * len(names)

                made.run(has_moved, 60.0)
                if share < 1.0:
                    running.kill()
                    running.start()
            arrived = remaining(running, "b")
            assert set(arrived) == set(names)
            check_order(arrived)
            # What was settled while its session was lost is completed when it comes again.
            made.run(lambda: remaining(running, "a") == [])


def test_credit_is_a_bound_and_drain_an_end_i1(served: NamespaceProcess) -> None:
    with client_of(served, "flights") as client:
        bodies = [
            section.encode_message(b"x", properties={"message_id": name, "group_id": name.partition("/")[0]})
            for name in interleaved(8, 5)
        ]
        Sender(client, "flights").wait_ready().send_all(bodies, batch=50)
    with host() as made:
        source = made.source(1, "flights/Subscriptions/legs", sessions=4)
        made.run(lambda: made.events[1])
        source.grant(7)
        made.run(lambda: len(made.ids(1)) == 7)
        until = time.monotonic() + 0.3
        made.run(lambda: time.monotonic() >= until)
        assert len(made.ids(1)) == 7
        source.grant(4)
        source.drain()
        made.run(lambda: made.reported(1, Drained))
        count = len(made.ids(1))
        assert count <= 11
        until = time.monotonic() + 0.2
        made.run(lambda: time.monotonic() >= until)
        assert len(made.ids(1)) == count
        # A session with messages under way is not given back: the next ones come as these are settled.
        made.handlers[1] = lambda event: source.settle(0, 1 << 40) if isinstance(event, Arrived) else None
        source.settle(0, 1 << 40)
        source.grant(100)
        made.run(lambda: len(set(made.ids(1))) == 40)
        check_order(made.ids(1))


def test_only_present_gives_what_was_there_and_no_more_i4(served: NamespaceProcess) -> None:
    fill(served, "present", interleaved(10, 3))
    with host() as made:
        route = Route(made, 1, "present", "topresent", sessions=2, only_present=True)
        made.run(lambda: route.settled)
        fill(served, "present", ["s0/3", "late/0"])
        made.run(lambda: route.is_exhausted and len(route.settled) == 30)
        assert made.iterations < 2000  # a later message that goes back is not asked for again and again
        assert len(made.reported(1, Exhausted)) == 1
    assert sorted(remaining(served, "present")) == ["late/0", "s0/3"]
    check_order(remaining(served, "topresent"))


def test_close_gives_back_at_once_and_raises_no_delivery_count_i5(served: NamespaceProcess) -> None:
    fill(served, "closed", interleaved(3, 4))
    with host() as made:
        source = made.source(1, "closed", sessions=3)
        made.run(lambda: made.events[1])
        source.grant(100)
        made.run(lambda: len(made.ids(1)) == 12)
        source.close()
        made.ends.clear()
        made.sources.close()
    with client_of(served, "closed") as client:
        for session in range(3):
            receiver = Receiver(client, "closed", in_session=True, session_id=f"s{session}").wait_attached()
            receiver.grant(10)
            client.wait_until(lambda receiver=receiver: receiver.received == 4, 5.0, "no messages")
            payloads = [payload for run in receiver.take() for payload in run.payloads]
            assert [message_id(each) for each in payloads] == [f"s{session}/{number}" for number in range(4)]
            for each in payloads:
                header = section.decode_header(each, section.locate(each).header)
                assert not header.delivery_count


@pytest.mark.parametrize("path", ["plain", "nothing"])
def test_an_entity_without_sessions_or_none_is_fatal(served: NamespaceProcess, path: str) -> None:
    with host() as made:
        source = made.source(1, path, sessions=2)
        made.run(lambda: made.events[1])
        source.grant(10)
        made.run(lambda: made.reported(1, SourceLost))
        (lost,) = made.reported(1, SourceLost)
        assert lost.is_fatal


def test_an_idle_source_looks_at_nothing(served: NamespaceProcess) -> None:
    with host() as made:
        source = made.source(1, "to", sessions=4)
        source.drain()
        made.run(lambda: made.events[1])
        assert made.iterations < 100
        before, until = made.iterations, time.monotonic() + 1.0
        source.grant(0)
        made.run(lambda: time.monotonic() >= until)
        assert made.iterations - before < 10
        assert source.deadline(time.monotonic()) == math.inf or source.deadline(time.monotonic()) > time.monotonic()
