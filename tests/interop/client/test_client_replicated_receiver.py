"""A receiver of two real namespaces, by the official SDK: the failures of active and passive replication, one by one.

The tables are those of Microsoft Learn, "Best practices for insulating applications against Service Bus outages and disasters": a message
stuck in a region that is away, one lost with it, one received twice since an acknowledgement was lost.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import timedelta
from itertools import count
from pathlib import Path

import psutil
import pytest
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusClient, ServiceBusMessage, ServiceBusSubQueue
from azure.servicebus.exceptions import MessageAlreadySettled, OperationTimeoutError, ServiceBusError

from harness.client.client_receiver import (
    KINDS,
    InThread,
    Receiver,
    copied,
    left,
    make_message,
    open_receiver,
    running,
    send,
    wait_until,
)
from isthmus.client import ReplicatedSender
from isthmus.client.receive import branch
from isthmus.client.seen import Bounds, MemorySeen, SeenStoreError
from isthmus.testing.namespace import NamespaceProcess, namespace
from isthmus.testing.proxy import Weather, proxy

# Locks that outlast any pause of a loaded machine, but where a test waits for their end.
LOCKS = {"q": "60s", "short": "3s"}
CONFIG = (
    "limits: {min_lock_duration: 1s}\nqueues:\n"
    + "".join(
        f"  {name}{number}: {{lock_duration: {seconds}, max_delivery_count: 50}}\n"
        for name, seconds in LOCKS.items()
        for number in range(60)
    )
    + "  few: {lock_duration: 60s, max_delivery_count: 3}\n"
    + "".join(f"  s{number}: {{lock_duration: 60s, requires_session: true}}\n" for number in range(8))
    + "topics:\n"
    + "".join(f"  topic{number}: {{subscriptions: {{before: {{}}, read: {{}}, route: {{}}}}}}\n" for number in range(2))
)
_numbers = count()
_sessions = count()
Opening = Callable[..., AbstractContextManager[Receiver]]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[NamespaceProcess, NamespaceProcess]]:
    folder = tmp_path_factory.mktemp("pair")
    with namespace(folder / "a", config=CONFIG) as a, namespace(folder / "b", config=CONFIG) as b:
        yield a, b


@pytest.fixture
def queue() -> str:
    return f"q{next(_numbers)}"


@pytest.fixture
def short() -> str:
    return f"short{next(_numbers)}"


@pytest.fixture
def sessions() -> str:
    return f"s{next(_sessions)}"


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def opening(kind: str, pair: tuple[NamespaceProcess, NamespaceProcess], tmp_path: Path) -> Opening:
    def open_it(entity: str, **options: object) -> AbstractContextManager[Receiver]:
        options.setdefault("seen", tmp_path / "seen.db")
        options.setdefault("max_wait_time", 1.5)
        a, b = pair
        return open_receiver(kind, "ReplicatedReceiver", a.connection_string, b.connection_string, entity, **options)

    return open_it


# azure-servicebus leaves the sockets of broken connections to the garbage collector, which may run in any test.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")


def test_messages_at_both_are_handed_over_once(
    opening: Opening, pair: tuple[NamespaceProcess, NamespaceProcess], queue: str
) -> None:
    names = [f"m{number}" for number in range(100)]
    for ns in pair:
        send(ns, queue, [make_message(name) for name in names])
    found = []
    with opening(queue) as receiver:
        for message in receiver:
            found.append(str(message))
            receiver.complete_message(message)
        statistics = receiver.statistics()
    assert sorted(found) == sorted(names)
    assert statistics.handled == 100
    assert statistics.suppressed >= 100
    assert [left(ns, queue) for ns in pair] == [[], []]


def test_a_copy_that_arrives_after_a_restart_is_suppressed(
    opening: Opening, pair: tuple[NamespaceProcess, NamespaceProcess], queue: str
) -> None:
    """An acknowledgement was lost: one message, twice, the second one later."""
    a, b = pair
    send(a, queue, [make_message("m1")])
    with opening(queue) as receiver:
        [message] = receiver.receive_messages(10)
        receiver.complete_message(message)
    send(b, queue, [make_message("m1")])
    with opening(queue) as receiver:
        assert receiver.receive_messages(10, max_wait_time=1.5) == []
        assert receiver.statistics().suppressed >= 1
    assert [left(a, queue), left(b, queue)] == [[], []]


def test_a_message_whose_handler_failed_is_not_seen(
    opening: Opening, pair: tuple[NamespaceProcess, NamespaceProcess], queue: str
) -> None:
    send(pair[1], queue, [make_message("m1")])
    with opening(queue) as receiver:
        [message] = receiver.receive_messages(1)
        receiver.abandon_message(message)
        [again] = receiver.receive_messages(1, max_wait_time=10)
        assert again.delivery_count == 1
        receiver.complete_message(again)
        with pytest.raises(MessageAlreadySettled):
            receiver.complete_message(again)
        with pytest.raises(ValueError, match="not received by this receiver"):
            receiver.complete_message(ServiceBusMessage(b""))
    assert left(pair[1], queue) == []


def test_a_handler_that_never_settled_is_followed_by_another_run(
    opening: Opening, pair: tuple[NamespaceProcess, NamespaceProcess], short: str
) -> None:
    for ns in pair:
        send(ns, short, [make_message("m1")])
    with opening(short) as receiver:
        assert len(receiver.receive_messages(1)) == 1
    with opening(short) as receiver:
        [message] = receiver.receive_messages(1, max_wait_time=10)
        receiver.complete_message(message)
        wait_until(lambda: receiver.statistics().suppressed >= 1)
    assert [left(ns, short) for ns in pair] == [[], []]


def test_equal_ids_with_different_contents_are_two_messages(
    opening: Opening, pair: tuple[NamespaceProcess, NamespaceProcess], queue: str
) -> None:
    send(pair[0], queue, [make_message("1", body="of one publisher")])
    send(pair[1], queue, [make_message("1", body="of another")])
    found = set()
    with opening(queue) as receiver:
        for message in receiver:
            found.add(str(message))
            receiver.complete_message(message)
    assert found == {"of one publisher", "of another"}


def test_messages_without_ids_are_each_their_own(
    opening: Opening, pair: tuple[NamespaceProcess, NamespaceProcess], queue: str
) -> None:
    for ns in pair:
        send(ns, queue, [ServiceBusMessage(b"same"), ServiceBusMessage(b"same")])
    with opening(queue) as receiver:
        assert sum(1 for message in receiver if receiver.complete_message(message) is None) == 4


def test_a_copy_that_a_route_made_is_known_by_its_origin(
    opening: Opening, pair: tuple[NamespaceProcess, NamespaceProcess], queue: str
) -> None:
    """Also without MessageIds; and a message with the id of another, which entered elsewhere, is another."""
    a, b = pair
    send(a, queue, [ServiceBusMessage(b"without id"), make_message("1")])
    copies = copied(a, b, queue)
    send(b, queue, [make_message("1", body="of another publisher")])
    found = []
    with opening(queue) as receiver:
        for message in receiver:
            found.append(str(message))
            receiver.complete_message(message)
        assert receiver.statistics().suppressed >= copies
    assert sorted(found) == ["1", "of another publisher", "without id"]
    assert [left(ns, queue) for ns in pair] == [[], []]


def test_a_copy_of_a_subscriptions_message_is_known_in_another_subscription(
    opening: Opening, pair: tuple[NamespaceProcess, NamespaceProcess], kind: str
) -> None:
    """Routes read a subscription of their own; the number and the time that they show are the topic's."""
    a, b = pair
    topic = f"topic{KINDS.index(kind)}"
    send(a, topic, [make_message("m1"), ServiceBusMessage(b"m2")])
    assert copied(a, b, topic, "route") == 2
    found = []
    with opening(topic, subscription="read") as receiver:
        for message in receiver:
            found.append(str(message))
            receiver.complete_message(message)
        assert receiver.statistics().suppressed >= 2
    assert sorted(found) == ["m1", "m2"]
    with opening(topic, subscription="before") as receiver:  # the same list serves another subscription
        assert sum(1 for message in receiver if receiver.complete_message(message) is None) == 2


def test_what_a_replicated_sender_sends_is_handled_once(
    opening: Opening, pair: tuple[NamespaceProcess, NamespaceProcess], queue: str
) -> None:
    a, b = pair
    with ReplicatedSender(
        a.connection_string, b.connection_string, queue, attempt_timeout=20, connect_timeout=20
    ) as sender:
        sender.send_messages([ServiceBusMessage(b"%d" % number) for number in range(20)])
    with opening(queue) as receiver:
        found = []
        for message in receiver:
            found.append(int(str(message)))
            receiver.complete_message(message)
        assert receiver.statistics().suppressed >= 20
    assert sorted(found) == list(range(20))
    assert [left(ns, queue) for ns in pair] == [[], []]


def test_dead_lettered_and_deferred_messages_are_handled_and_their_copies_completed(
    opening: Opening, pair: tuple[NamespaceProcess, NamespaceProcess], queue: str
) -> None:
    for ns in pair:
        send(ns, queue, [make_message("dead"), make_message("later")])
    with opening(queue) as receiver:
        found = {}
        while len(found) < 2:
            for message in receiver.receive_messages(2, max_wait_time=10):
                found[str(message)] = message
        receiver.dead_letter_message(found["dead"], reason="bad", error_description="since")
        receiver.defer_message(found["later"])
        assert receiver.receive_messages(1, max_wait_time=1.5) == []
        side, number = receiver.namespace_of(found["later"]), found["later"].sequence_number
        [deferred] = receiver.receive_deferred_messages(number, namespace=side)
        receiver.complete_message(deferred)
        assert receiver.statistics().handled_twice == 0
    assert [left(ns, queue) for ns in pair] == [[], []]
    dead = [left(ns, queue, 0, sub_queue="deadletter") for ns in pair]
    assert sorted(dead) == [[], ["dead"]]
    with opening(queue, sub_queue="deadletter") as receiver:  # with the same list
        [message] = receiver.receive_messages(1)
        receiver.complete_message(message)


def test_locks_are_renewed_and_a_slow_handler_handles_once(
    opening: Opening, pair: tuple[NamespaceProcess, NamespaceProcess], short: str
) -> None:
    for ns in pair:
        send(ns, short, [make_message("slow")])
    with opening(short) as receiver:
        [message] = receiver.receive_messages(1)
        until = receiver.renew_message_lock(message)
        assert until is not None
        time.sleep(4)  # beyond the lock of 3 s
        assert receiver.receive_messages(1, max_wait_time=1) == []
        receiver.complete_message(message)
    assert [left(ns, short) for ns in pair] == [[], []]


def test_a_handler_that_takes_too_long_is_followed_by_another_and_both_are_counted(
    opening: Opening, pair: tuple[NamespaceProcess, NamespaceProcess], short: str
) -> None:
    """Behind `max_lock_renewal` the lock of 3 s ends, and so does the claim."""
    send(pair[0], short, [make_message("slow")])
    bounds = Bounds(lease=timedelta(seconds=1))
    with opening(short, max_lock_renewal=timedelta(seconds=1), bounds=bounds, prefetch_count=1) as slow:
        [message] = slow.receive_messages(1)
        with opening(short, bounds=bounds) as other:
            [again] = other.receive_messages(1, max_wait_time=30)
            assert str(again) == "slow"
            other.complete_message(again)
        slow.complete_message(message)
        assert slow.statistics().handled_twice == 1
    assert left(pair[0], short) == []


def test_each_namespace_counts_its_own_deliveries(
    opening: Opening, pair: tuple[NamespaceProcess, NamespaceProcess]
) -> None:
    """MaxDeliveryCount is 3: what no handler finishes is tried three times from each, and then a dead letter of both."""
    for ns in pair:
        send(ns, "few", [make_message("m1")])
    attempts = 0
    with opening("few", max_wait_time=4) as receiver:
        for message in receiver:
            attempts += 1
            receiver.abandon_message(message)
    assert attempts == 6
    assert [dead_letters(ns, "few") for ns in pair] == [["m1"], ["m1"]]


def dead_letters(ns: NamespaceProcess, queue: str) -> list[str]:
    """The MessageIds in a queue's dead-letter queue, taken out of it."""
    found = []
    with (
        ServiceBusClient.from_connection_string(ns.connection_string) as client,
        client.get_queue_receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver,
    ):
        for message in receiver.receive_messages(10, max_wait_time=3):
            found.append(str(message.message_id))
            receiver.complete_message(message)
    return found


def test_a_namespace_that_hangs_delays_nothing(
    opening: Opening, pair: tuple[NamespaceProcess, NamespaceProcess], queue: str
) -> None:
    a, b = pair
    with opening(queue) as receiver:
        for ns in pair:
            send(ns, queue, [make_message(f"before{number}") for number in range(10)])
        for _ in range(10):
            receiver.complete_message(next(iter(receiver)))
        process = psutil.Process(b.pid)
        process.send_signal(signal.SIGSTOP)
        try:
            send(a, queue, [make_message(f"m{number}") for number in range(50)])
            began = time.monotonic()
            for _ in range(50):
                [message] = receiver.receive_messages(1, max_wait_time=10)
                receiver.complete_message(message)
            took = time.monotonic() - began
        finally:
            if took > 10:
                process.send_signal(signal.SIGCONT)
        assert took < 10
    closed = time.monotonic()
    process.send_signal(signal.SIGCONT)
    assert closed - began < 20  # it closes though one hangs
    assert left(a, queue) == []


def test_two_receivers_share_one_list(
    opening: Opening, pair: tuple[NamespaceProcess, NamespaceProcess], queue: str
) -> None:
    names = {f"m{number}" for number in range(60)}
    for ns in pair:
        send(ns, queue, [make_message(name) for name in names])
    found: list[str] = []

    def read(receiver: Receiver) -> None:
        for message in receiver:
            found.append(str(message))
            time.sleep(0.005)
            receiver.complete_message(message)

    with opening(queue) as one, opening(queue) as two, InThread(lambda: read(one)):
        read(two)
    assert sorted(found) == sorted(names)
    assert [left(ns, queue) for ns in pair] == [[], []]


def test_a_list_that_does_not_answer_hands_over_nothing_and_recovers(
    opening: Opening, pair: tuple[NamespaceProcess, NamespaceProcess], queue: str
) -> None:
    class Failing(MemorySeen):
        fails = True

        def claim(self, *arguments):  # type: ignore[no-untyped-def]
            if self.fails:
                raise SeenStoreError("test", "away")
            return super().claim(*arguments)

        def handle(self, *arguments):  # type: ignore[no-untyped-def]
            if self.fails:
                raise SeenStoreError("test", "away")
            return super().handle(*arguments)

    seen = Failing()
    send(pair[0], queue, [make_message("m1")])
    with opening(queue, seen=seen) as receiver:
        assert receiver.receive_messages(1, max_wait_time=1.5) == []
        assert receiver.statistics().seen_errors > 0
        seen.fails = False
        [message] = receiver.receive_messages(1, max_wait_time=10)
        seen.fails = True
        with pytest.raises(SeenStoreError):
            receiver.complete_message(message)
        seen.fails = False
        receiver.complete_message(message)
    assert left(pair[0], queue) == []


def test_a_session_is_read_in_order_and_its_state_is_kept_at_both(
    opening: Opening, pair: tuple[NamespaceProcess, NamespaceProcess], sessions: str
) -> None:
    a, b = pair
    names = [f"m{number:03}" for number in range(60)]
    send(b, sessions, [make_message(name, session_id="s") for name in names])
    found: list[str] = []
    with opening(sessions, session_id="s") as receiver:
        send(a, sessions, [make_message(name, session_id="s") for name in names])
        for message in receiver:
            found.append(str(message))
            receiver.complete_message(message)
        receiver.session.set_state(b"there")
        assert receiver.session.get_state() == b"there"
        assert receiver.session.session_id == "s"
    assert found == names
    for ns in pair:
        with (
            ServiceBusClient.from_connection_string(ns.connection_string) as client,
            client.get_queue_receiver(sessions, session_id="s") as plain,
        ):
            assert plain.session.get_state() == b"there"
            assert plain.peek_messages(10) == []


def test_the_next_available_session_is_one_that_is_not_read_at_either(
    opening: Opening, pair: tuple[NamespaceProcess, NamespaceProcess], sessions: str
) -> None:
    a, b = pair
    for ns, wanted in ((a, "both"), (b, "both"), (b, "there"), (a, "taken")):
        send(ns, sessions, [make_message(f"{wanted}{number}", session_id=wanted) for number in range(3)])
    found: dict[str, list[str]] = {}
    with (
        ServiceBusClient.from_connection_string(b.connection_string) as client,
        client.get_queue_receiver(sessions, session_id="taken"),  # by another receiver, where it has no messages
    ):
        for _ in range(2):
            with opening(sessions, session_id=NEXT_AVAILABLE_SESSION) as receiver:
                names = found[receiver.session.session_id] = []
                for message in receiver:
                    names.append(str(message))
                    receiver.complete_message(message)
        with pytest.raises(OperationTimeoutError), opening(sessions, session_id=NEXT_AVAILABLE_SESSION):
            pass
    assert found == {"both": ["both0", "both1", "both2"], "there": ["there0", "there1", "there2"]}
    with opening(sessions, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=30) as receiver:
        assert receiver.session.session_id == "taken"


def test_the_next_available_session_is_had_while_a_namespace_is_unavailable(
    kind: str, pair: tuple[NamespaceProcess, NamespaceProcess], sessions: str
) -> None:
    b = pair[1]
    send(b, sessions, [make_message("m1", session_id="s")])
    unreachable = "Endpoint=sb://127.0.0.1:1/;SharedAccessKeyName=a;SharedAccessKey=Yg==;UseDevelopmentEmulator=true"
    options = {"session_id": NEXT_AVAILABLE_SESSION, "max_wait_time": 20, "connect_timeout": 5.0}
    with open_receiver(kind, "ReplicatedReceiver", unreachable, b.connection_string, sessions, **options) as receiver:
        [message] = receiver.receive_messages(1)
        assert (str(message), receiver.session.session_id) == ("m1", "s")
        receiver.complete_message(message)


def test_an_entity_that_neither_has_is_an_error_at_once(opening: Opening) -> None:
    with pytest.raises(ServiceBusError), opening("no such queue"):
        pass


def test_bad_arguments_are_refused(opening: Opening, queue: str) -> None:
    with opening(queue) as receiver:
        with pytest.raises(ValueError, match="max_message_count"):
            receiver.receive_messages(0)
        with pytest.raises(ValueError, match="max_wait_time"):
            receiver.receive_messages(1, max_wait_time=0)


class TestRegionAway:
    """The namespaces are killed here, and started again after each test."""

    @pytest.fixture
    def regions(
        self, pair: tuple[NamespaceProcess, NamespaceProcess], short: str
    ) -> Iterator[tuple[NamespaceProcess, NamespaceProcess]]:
        self.queue = short
        yield pair
        running(*pair)

    def open_it(
        self, kind: str, regions: tuple[NamespaceProcess, NamespaceProcess], tmp_path: Path
    ) -> AbstractContextManager[Receiver]:
        a, b = regions
        return open_receiver(
            kind,
            "ReplicatedReceiver",
            a.connection_string,
            b.connection_string,
            self.queue,
            seen=tmp_path / "seen.db",
            bounds=Bounds(lease=timedelta(seconds=2)),
            max_wait_time=10,
        )

    def test_a_message_stuck_in_the_primary_comes_late_and_nothing_is_lost(
        self, kind: str, regions: tuple[NamespaceProcess, NamespaceProcess], tmp_path: Path
    ) -> None:
        """m1 stuck in the primary, m2 through the secondary, m1 later."""
        a, b = regions
        send(a, self.queue, [make_message("m1")])
        a.kill()
        with self.open_it(kind, regions, tmp_path) as receiver:
            send(b, self.queue, [make_message("m2")])
            [message] = receiver.receive_messages(1)
            assert str(message) == "m2"
            receiver.complete_message(message)
            state = receiver.statistics().namespaces["primary"]
            assert not state.is_open
            assert state.last_error
            a.start()
            [message] = receiver.receive_messages(1, max_wait_time=30)
            assert str(message) == "m1"
            receiver.complete_message(message)
        assert [left(ns, self.queue) for ns in regions] == [[], []]

    def test_a_primary_that_is_lost_for_good_loses_what_only_it_had(
        self, kind: str, regions: tuple[NamespaceProcess, NamespaceProcess], tmp_path: Path
    ) -> None:
        """Passive replication: m1 went to the primary alone. Active: m2 went to both. The account names m1."""
        a, b = regions
        acknowledged = {"m1", "m2", "m3"}
        send(a, self.queue, [make_message("m1"), make_message("m2")])
        a.kill()
        send(b, self.queue, [make_message("m2"), make_message("m3")])
        with self.open_it(kind, regions, tmp_path) as receiver:
            handled = set()
            for _ in range(2):
                [message] = receiver.receive_messages(1)
                handled.add(str(message))
                receiver.complete_message(message)
            assert receiver.receive_messages(1, max_wait_time=1.5) == []
        assert acknowledged - handled == {"m1"}

    def test_the_copy_is_handled_where_the_handler_failed_and_the_namespace_died(
        self, kind: str, regions: tuple[NamespaceProcess, NamespaceProcess], tmp_path: Path
    ) -> None:
        a, b = regions
        send(a, self.queue, [make_message("m1")])
        with self.open_it(kind, regions, tmp_path) as receiver:
            [message] = receiver.receive_messages(1)
            assert receiver.namespace_of(message) == "primary"
            send(b, self.queue, [make_message("m1")])
            wait_until(lambda: receiver.statistics().unsettled == 2)
            a.kill()
            receiver.abandon_message(message)
            [copy] = receiver.receive_messages(1)
            assert receiver.namespace_of(copy) == "secondary"
            receiver.complete_message(copy)
        assert left(b, self.queue) == []

    def test_a_message_in_hand_when_its_namespace_dies_is_handled_and_known_when_it_comes_again(
        self, kind: str, regions: tuple[NamespaceProcess, NamespaceProcess], tmp_path: Path
    ) -> None:
        a, _ = regions
        send(a, self.queue, [make_message("m1")])
        with self.open_it(kind, regions, tmp_path) as receiver:
            [message] = receiver.receive_messages(1)
            a.kill()
            wait_until(lambda: not receiver.statistics().namespaces["primary"].is_open)
            receiver.complete_message(message)
            a.start()
            wait_until(lambda: receiver.statistics().suppressed >= 1)
        assert left(a, self.queue) == []


def test_a_call_that_is_cancelled_takes_no_message_along(
    pair: tuple[NamespaceProcess, NamespaceProcess], queue: str, tmp_path: Path
) -> None:
    import asyncio

    from isthmus.client.aio import ReplicatedReceiver

    async def run() -> list[str]:
        a, b = pair
        found = []
        async with ReplicatedReceiver(
            a.connection_string, b.connection_string, queue, seen=tmp_path / "s.db"
        ) as receiver:
            sending = threading.Thread(target=lambda: [send(a, queue, [make_message(f"m{n}")]) for n in range(20)])
            sending.start()
            while len(found) < 20:
                try:
                    async with asyncio.timeout(0.003):
                        messages = await receiver.receive_messages(5)
                except TimeoutError:
                    continue
                found += [str(each) for each in messages]
                for message in messages:
                    await receiver.complete_message(message)
            sending.join()
        return found

    assert sorted(asyncio.run(run())) == sorted(f"m{number}" for number in range(20))


def test_a_namespace_that_accepts_and_says_nothing_is_connected_when_it_says_something(
    pair: tuple[NamespaceProcess, NamespaceProcess], queue: str, kind: str, tmp_path: Path
) -> None:
    """The SDK's opening of a receiver would wait without end for a peer that never answers."""
    a, b = pair
    with proxy(a.ports["amqp"]) as between:
        between.set_weather(Weather(is_stalled=True))
        by_proxy = a.connection_string.replace(f":{a.ports['amqp']}", f":{between.port}", 1)
        with open_receiver(
            kind,
            "ReplicatedReceiver",
            by_proxy,
            b.connection_string,
            queue,
            seen=tmp_path / "s.db",
            connect_timeout=1.0,
        ) as receiver:
            send(b, queue, [make_message("m1")])
            [message] = receiver.receive_messages(1)
            receiver.complete_message(message)
            wait_until(lambda: receiver.statistics().namespaces["primary"].failures > 0)
            between.cut()  # what stalled is lost, as after a restart of the machine
            between.set_weather(Weather())
            send(a, queue, [make_message("m2")])
            [message] = receiver.receive_messages(1)
            receiver.complete_message(message)


def test_a_connection_that_silently_carries_nothing_is_made_again(
    pair: tuple[NamespaceProcess, NamespaceProcess], queue: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(branch, "QUIET_SECONDS", 0.5)
    monkeypatch.setattr(branch, "PEEK_SECONDS", 1.0)
    a, b = pair
    with proxy(a.ports["amqp"]) as between:
        by_proxy = a.connection_string.replace(f":{a.ports['amqp']}", f":{between.port}", 1)
        with open_receiver(
            "threads",
            "ReplicatedReceiver",
            by_proxy,
            b.connection_string,
            queue,
            seen=tmp_path / "s.db",
            connect_timeout=5.0,
        ) as receiver:
            wait_until(lambda: receiver.statistics().namespaces["primary"].is_open)
            between.set_weather(Weather(is_stalled=True))
            wait_until(lambda: receiver.statistics().namespaces["primary"].failures > 0)
            between.cut()
            between.set_weather(Weather())
            send(a, queue, [make_message("m1")])
            [message] = receiver.receive_messages(1)
            receiver.complete_message(message)
