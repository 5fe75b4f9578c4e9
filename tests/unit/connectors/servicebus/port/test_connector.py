"""The connector, its options and the connecting in the background."""

import operator
import select
import threading
import time
from functools import partial

import pytest

from isthmus.bridge.delivery_event import Send
from isthmus.bridge.port import SourceLost
from isthmus.bridge.refusal import RefusalKind
from isthmus.bridge.registry import connector
from isthmus.connectors.servicebus.port.connection import SharedConnection, remote_of
from isthmus.connectors.servicebus.port.credential import BackgroundCredential
from isthmus.connectors.servicebus.port.dialer import THREADS, Dialer
from isthmus.connectors.servicebus.port.option import read_source, read_target
from isthmus.connectors.servicebus.port.session.source import SessionSource
from isthmus.connectors.servicebus.port.source import ServiceBusSource
from isthmus.errors import ConfigError, ConnectionLostError, InvalidArgumentError
from isthmus.transport import Client, Token
from isthmus.transport.credential import TokenError

OPTIONS = {"connection": "env:NOT_THERE", "entity": "orders"}


def test_every_wrong_option_is_named_at_once() -> None:
    kind = connector("servicebus")
    sources, targets = kind.sources(), kind.targets()
    with pytest.raises(ConfigError) as caught:
        sources.source(1, {"lock_seconds": "long", "colour": "red", "transport_type": "smoke"})
    assert len(caught.value.faults) == 3
    with pytest.raises(ConfigError) as caught:
        targets.target(1, {"origin": "nowhere"})
    assert len(caught.value.faults) == 3
    sources.close()
    targets.close()


def test_what_only_the_data_source_needs_is_passed_over() -> None:
    assert read_source(OPTIONS | {"mode": "raw", "ordered": "true", "spool": "/x"}).entity == "orders"
    made = read_target(
        OPTIONS | {"origin": "east/orders", "origin_connection": "env:EAST", "refused": "block", "mark": "m"}
    )
    assert (made.origin, made.origin_connection, made.mark) == ("east/orders", "", "m")


def test_an_entity_with_sessions_has_a_source_of_its_own() -> None:
    sources = connector("servicebus").sources()
    assert isinstance(sources.source(1, OPTIONS | {"sessions": "4"}), SessionSource)
    assert isinstance(sources.source(2, OPTIONS | {"sessions": "0"}), ServiceBusSource)
    with pytest.raises(ConfigError, match="sessions"):
        sources.source(3, OPTIONS | {"sessions": "501"})
    sources.close()


def test_copies_need_a_target_that_has_answered() -> None:
    pool = connector("servicebus").targets()
    target = pool.target(1, OPTIONS)
    with pytest.raises(InvalidArgumentError, match="Opened"):
        target.copies(b"", [0, 0], 0)
    target.send(Send([b"x"]))
    assert list(target.poll(0.0)) == []
    pool.close()


def test_a_reference_that_leads_nowhere_is_reported_by_poll() -> None:
    pool = connector("servicebus").sources()
    source = pool.source(7, OPTIONS)
    source.open()
    (descriptor, _), *_ = pool.descriptors()
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    assert poll.poll(10_000)
    assert pool.service({descriptor: select.POLLIN}, time.monotonic()) == [7]
    (event,) = source.poll(time.monotonic())
    assert isinstance(event, SourceLost)
    assert "NOT_THERE" in event.text
    assert list(source.poll(time.monotonic())) == []
    source.open()
    source.close()
    assert list(pool.service({}, time.monotonic())) == []
    pool.close()


def test_refusals_of_foreign_errors_are_unclear() -> None:
    kind = connector("servicebus")
    assert kind.refusal_of(ValueError("x")).kind is RefusalKind.UNCLEAR
    assert kind.refusal_of(ConnectionLostError("x")).kind is RefusalKind.BLOCKED


def test_at_most_so_many_connections_are_made_at_a_time_i1() -> None:
    dialer: Dialer[int] = Dialer()
    lock, gate = threading.Lock(), threading.Event()
    running, most = [0], [0]

    def dial() -> Client:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        gate.wait(10)
        with lock:
            running[0] -= 1
        raise ConnectionLostError("no server there")

    for number in range(3 * THREADS):
        dialer.dial(number, dial)
    gate.set()
    found = []
    poll = select.poll()
    poll.register(dialer.fileno(), select.POLLIN)
    while len(found) < 3 * THREADS:
        assert poll.poll(10_000)
        found += dialer.take()
    assert sorted(result.owner for result in found) == list(range(3 * THREADS))
    assert most[0] <= THREADS
    dialer.close()


def test_a_place_that_does_not_answer_delays_no_other_i3() -> None:
    dialer: Dialer[str, Client] = Dialer()
    gate = threading.Event()

    def hang() -> Client:
        gate.wait(10)
        raise ConnectionLostError("no server there")

    def refuse() -> Client:
        raise ConnectionLostError("refused")

    for _ in range(2 * THREADS):
        dialer.dial("away", hang, "away")
    dialer.dial("other", refuse, "other")
    poll = select.poll()
    poll.register(dialer.fileno(), select.POLLIN)
    try:
        assert poll.poll(5_000)
        assert [result.owner for result in dialer.take()] == ["other"]
    finally:
        gate.set()
        dialer.close()


def test_what_nothing_waits_for_is_not_dialed_i4() -> None:
    dialer: Dialer[int, Client] = Dialer()
    gate = threading.Event()
    dialed: list[int] = []

    def dial(number: int) -> Client:
        gate.wait(10)
        dialed.append(number)
        raise ConnectionLostError("no server there")

    for number in range(4 * THREADS):
        dialer.dial(number, partial(dial, number), "place", partial(operator.lt, number, THREADS))
    dialer.dial(-1, partial(dial, -1), "place")
    gate.set()
    found: list[int] = []
    poll = select.poll()
    poll.register(dialer.fileno(), select.POLLIN)
    while len(found) <= THREADS:
        assert poll.poll(10_000)
        found += [result.owner for result in dialer.take()]
    assert sorted(found) == sorted(dialed) == list(range(-1, THREADS))
    dialer.close()


def test_where_no_thread_starts_the_request_fails_and_the_next_is_dialed_i5(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container's limit of processes: without a result an opening waits for ever, and after some of them every later one waits for a free thread."""
    dialer: Dialer[int, Client] = Dialer()

    def dial() -> Client:
        raise ConnectionLostError("no server there")

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    poll = select.poll()
    poll.register(dialer.fileno(), select.POLLIN)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        for number in range(THREADS):
            dialer.dial(number, dial, "place")
    assert poll.poll(0)
    results = dialer.take()
    assert [result.owner for result in results] == list(range(THREADS))
    assert all("new thread" in str(result.error) for result in results)
    dialer.dial(THREADS, dial, "place")
    assert poll.poll(10_000)
    assert [str(result.error) for result in dialer.take()] == ["no server there"]
    dialer.close()


class User:
    def __init__(self, path: str, sessions: int = 2) -> None:
        self.path = path
        self.sessions = sessions
        self.lost: list[str] = []

    def on_connected(self, client: Client) -> None:
        raise AssertionError("it never connects")

    def on_disconnected(self, error: Exception) -> None:
        self.lost.append(str(error))


def test_each_user_of_a_connection_is_notified_once_and_room_is_limited() -> None:
    connection = SharedConnection(remote_of(read_source(OPTIONS)).connection_key)
    users = [User("a") for _ in range(500)]
    for user in users:
        assert connection.takes(2)
        connection.join(user)
    assert not connection.takes(1)
    connection.leave(users[0], 5.0)
    connection.leave(users[0], 6.0)
    assert connection.takes(2)
    connection.lost(ConnectionLostError("gone"))
    connection.lost(ConnectionLostError("gone again"))
    assert users[0].lost == []
    assert all(user.lost == ["gone"] for user in users[1:])
    assert not connection.takes(1)


class Identity:
    def __init__(self) -> None:
        self.asked = 0
        self.gate = threading.Event()

    def token(self, audience: str, now: float) -> Token:
        self.asked += 1
        if self.asked > 1:
            self.gate.wait(10)
        return Token(f"t{self.asked}", "jwt", time.time() + 1000)


def test_tokens_of_an_identity_are_fetched_in_the_background() -> None:
    inner = Identity()
    credential = BackgroundCredential(inner)
    credential.fetch()
    now = time.time()
    assert credential.token("sb://x/a", now) == credential.token("sb://x/b", now)
    assert inner.asked == 1
    late = credential.token("sb://x/a", now + 800)  # the next is in transit, and this one is valid
    assert late is not None
    assert late.text == "t1"
    with pytest.raises(TokenError):
        credential.token("sb://x/a", now + 1001)
    inner.gate.set()
