"""A receiver of an active-passive pair of real namespaces, by the official SDK: over and back, manually, automatically and by script."""

from __future__ import annotations

import json
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

from harness.client.client_receiver import (
    KINDS,
    Receiver,
    copied,
    left,
    make_message,
    open_receiver,
    running,
    send,
    wait_until,
)
from isthmus.client.failover_receiver import FailoverReceiver, FailoverState, FailoverStateError, FailoverView
from isthmus.errors import InvalidArgumentError
from isthmus.testing.namespace import NamespaceProcess, namespace

CONFIG = "limits: {min_lock_duration: 1s}\nqueues:\n" + "".join(
    f"  q{number}: {{lock_duration: 3s, max_delivery_count: 50}}\n" for number in range(20)
)
_numbers = count()
Pair = tuple[NamespaceProcess, NamespaceProcess]
Opening = Callable[..., AbstractContextManager[Receiver]]
SECOND = timedelta(seconds=1)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("pair")
    with namespace(folder / "a", config=CONFIG) as a, namespace(folder / "b", config=CONFIG) as b:
        yield a, b


@pytest.fixture
def pair(both: Pair) -> Iterator[Pair]:
    yield both
    running(*both)


@pytest.fixture
def queue() -> str:
    return f"q{next(_numbers)}"


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def opening(kind: str, pair: Pair, queue: str, tmp_path: Path) -> Opening:
    def open_it(**options: object) -> AbstractContextManager[Receiver]:
        chosen = {
            "seen": tmp_path / "seen.db",
            "state": tmp_path / "state.json",
            "max_wait_time": 2,
            "drain_for": SECOND,
            "probe_interval": SECOND / 2,
            "probe_timeout": 2 * SECOND,
            "connect_timeout": 5.0,
            **options,
        }
        a, b = pair
        return open_receiver(kind, "FailoverReceiver", a.connection_string, b.connection_string, queue, **chosen)

    return open_it


# azure-servicebus leaves the sockets of broken connections to the garbage collector, which may run in any test.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")


def handle(receiver: Receiver, count: int, wait: float = 20) -> list[str]:
    found: list[str] = []
    while len(found) < count:
        messages = receiver.receive_messages(count - len(found), max_wait_time=wait)
        assert messages, f"only {found} came"
        for message in messages:
            found.append(str(message))
            receiver.complete_message(message)
    return found


def test_over_and_back_by_hand_in_the_order_of_the_guide(opening: Opening, pair: Pair, queue: str) -> None:
    a, b = pair
    reported: list[str] = []
    seen_at: list[FailoverState] = []
    may_switch = threading.Event()

    def publishers(side: str) -> None:
        seen_at.append(receiver.state)
        if side == "primary" and not may_switch.is_set():
            raise RuntimeError("publishers are not ready")
        reported.append(side)

    with opening(publishers=publishers) as receiver:
        send(a, queue, [make_message("m1"), make_message("m2")])
        copied(a, b, queue)  # as the route does
        assert sorted(handle(receiver, 2)) == ["m1", "m2"]
        receiver.fail_over()
        send(b, queue, [make_message("local1")])
        assert handle(receiver, 1) == ["local1"]  # m1 and m2 are known by their origin
        wait_until(lambda: receiver.statistics().receiver.suppressed >= 2)
        wait_until(lambda: reported == ["secondary"])

        receiver.fail_back()
        time.sleep(0.5)
        assert receiver.state is FailoverState.PUBLISHERS
        send(b, queue, [make_message("local2"), make_message("local3")])
        may_switch.set()
        send(a, queue, [make_message("new")])
        assert sorted(handle(receiver, 2)) == ["local2", "local3"]  # before what is at the primary
        assert handle(receiver, 1) == ["new"]
        assert receiver.state is FailoverState.PRIMARY
        assert reported == ["secondary", "primary"]
        assert receiver.statistics().changes == 4
    assert [left(ns, queue) for ns in pair] == [[], []]


@pytest.mark.parametrize("how", ["killed", "frozen"])
def test_over_by_itself_when_the_primary_is_unavailable_and_back_when_it_answers(
    opening: Opening, pair: Pair, queue: str, how: str
) -> None:
    a, b = pair
    with opening(fail_over_after=2 * SECOND, fail_back_after=2 * SECOND) as receiver:
        send(a, queue, [make_message("m1")])
        assert handle(receiver, 1) == ["m1"]
        process = psutil.Process(a.pid)
        if how == "killed":
            a.kill()
        else:
            process.send_signal(signal.SIGSTOP)
        try:
            wait_until(lambda: receiver.state is FailoverState.SECONDARY)
            send(b, queue, [make_message("m2")])
            assert handle(receiver, 1) == ["m2"]
            time.sleep(3)
            assert receiver.state is FailoverState.SECONDARY  # it does not answer: no fail-back
        finally:
            if how == "killed":
                a.start()
            else:
                process.send_signal(signal.SIGCONT)
        send(a, queue, [make_message("m3")])
        assert handle(receiver, 1, wait=40) == ["m3"]
        assert receiver.state is FailoverState.PRIMARY


def test_by_a_script(opening: Opening, pair: Pair, queue: str) -> None:
    wishes: list[str | None] = [None, "secondary"]
    views: list[FailoverView] = []

    def trigger(view: FailoverView) -> str | None:
        views.append(view)
        if len(views) == 1:
            raise RuntimeError("a script that fails is called again")
        return wishes.pop(0) if wishes else None

    with opening(trigger=trigger) as receiver:
        wait_until(lambda: receiver.state is FailoverState.SECONDARY)
        send(pair[1], queue, [make_message("m1")])
        assert handle(receiver, 1) == ["m1"]
        wishes.append("primary")
        wait_until(lambda: receiver.state is FailoverState.PRIMARY)
    assert views[0].state is FailoverState.PRIMARY


def test_it_continues_where_it_left_off(opening: Opening, pair: Pair, queue: str, tmp_path: Path) -> None:
    with opening() as receiver:
        receiver.fail_over()
    send(pair[1], queue, [make_message("m1")])
    with opening() as receiver:
        assert receiver.state is FailoverState.SECONDARY
        assert handle(receiver, 1) == ["m1"]
    assert json.loads((tmp_path / "state.json").read_text())["state"] == "secondary"


def test_a_copy_older_than_the_watermark_is_skipped_though_the_list_does_not_know_it(
    opening: Opening, pair: Pair, queue: str, tmp_path: Path
) -> None:
    """And one that was not handled at the primary is not, whatever its time."""
    a, b = pair
    send(a, queue, [make_message("m1"), make_message("failed")])
    time.sleep(0.5)
    send(a, queue, [make_message("m2")])
    copied(a, b, queue)
    with opening(watermark_drift=timedelta(milliseconds=100)) as receiver:
        found = {}
        while len(found) < 3:
            for message in receiver.receive_messages(3):
                found[str(message)] = message
        receiver.complete_message(found["m1"])
        receiver.complete_message(found["m2"])
        low = receiver.statistics().watermark
        assert low is not None
        assert low <= found["failed"].enqueued_time_utc
        receiver.complete_message(found["failed"])
        assert receiver.statistics().watermark == found["m2"].enqueued_time_utc
    (tmp_path / "seen.db").unlink()
    with opening(watermark_drift=timedelta(milliseconds=100)) as receiver:
        receiver.fail_over()
        assert handle(receiver, 1) == ["m2"]  # within the allowance
        assert receiver.statistics().receiver.skipped == 2
    assert [left(ns, queue) for ns in pair] == [[], []]


def test_bad_arguments_and_a_bad_file_are_refused(tmp_path: Path) -> None:
    connection = "Endpoint=sb://localhost;SharedAccessKeyName=k;SharedAccessKey=v"
    with pytest.raises(InvalidArgumentError, match="fail_over_after is 0:00:00; it has to be positive"):
        FailoverReceiver(connection, connection, "orders", fail_over_after=timedelta(0))
    (tmp_path / "state.json").write_text("{}")
    with pytest.raises(FailoverStateError, match=r"state\.json: is no state of a failover receiver"):
        FailoverReceiver(connection, connection, "orders", state=tmp_path / "state.json")
