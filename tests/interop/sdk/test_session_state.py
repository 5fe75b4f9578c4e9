"""The state of sessions is copied with their messages, between real namespaces, and read and set by azure-servicebus.

What is promised is in docs/how-to/keep-the-order-of-sessions.md.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import SessionCannotBeLockedError

from harness.bridge.hosted_run import HostedRun
from harness.bridge.port_host import Host, Route, host, message_id
from harness.client.sdk_client import receive
from isthmus.bridge.port import Exhausted, Noted
from isthmus.connectors.servicebus.connect import endpoint_of_string, open_client
from isthmus.connectors.servicebus.connection_string import ConnectionString
from isthmus.connectors.servicebus.port.session import state_copier, state_copy
from isthmus.connectors.servicebus.port.session.link import SessionLink
from isthmus.testing.namespace import NamespaceProcess, namespace
from isthmus.transport import Management

NAMES = ["copied", "kept", "held", "alone", "empty", "began", "missing", "present", "known", "pages", "moved", "taken"]
ENTITIES = "queues:\n" + "".join(
    f"  {name}: {{requires_session: true}}\n  to-{name}: {{requires_session: true}}\n" for name in NAMES
)
SECONDS = 30.0


@pytest.fixture(scope="module")
def served() -> Iterator[NamespaceProcess]:
    with namespace(config=ENTITIES) as running:
        yield running


@pytest.fixture(autouse=True)
def _set_connection(served: NamespaceProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORT_TEST", served.connection_string)


class Application:
    """One that sends to sessions, and keeps states, by azure-servicebus."""

    def __init__(self, client: ServiceBusClient) -> None:
        self.client = client

    def send(self, queue: str, *names: str) -> None:
        """Messages named SESSION/NUMBER."""
        with self.client.get_queue_sender(queue) as sender:
            sender.send_messages(
                [ServiceBusMessage(b"x", session_id=each.partition("/")[0], message_id=each) for each in names]
            )

    def put(self, queue: str, session: str, state: bytes | None) -> None:
        with self.client.get_queue_receiver(queue, session_id=session) as receiver:
            receiver.session.set_state(state)

    def get(self, queue: str, session: str) -> bytes | None:
        with self.client.get_queue_receiver(queue, session_id=session) as receiver:
            return receiver.session.get_state()


@pytest.fixture(scope="module")
def app(served: NamespaceProcess) -> Iterator[Application]:
    with ServiceBusClient.from_connection_string(served.connection_string, retry_total=0) as client:
        yield Application(client)


def states(folder: Path, queue: str, connection: str = "env:PORT_TEST") -> dict[str, str]:
    return {"state_entity": queue, "state_connection": connection, "state_file": str(folder / f"{queue}.jsonl")}


@contextmanager
def carried(folder: Path, name: str, **options: Any) -> Iterator[tuple[Host, Route]]:
    with host() as made:
        reported = states(folder, f"to-{name}") | options.pop("states", {})
        yield made, Route(made, 1, name, f"to-{name}", sessions=8, states=reported, **options)


def copies_of(route: Route) -> state_copy.StateCopies:
    found: state_copy.StateCopies = route.source._states._copies
    return found


def run_until_copied(made: Host, route: Route, count: int) -> None:
    made.run(lambda: len(route.settled) >= count and not copies_of(route)._due, SECONDS)


def test_a_state_is_at_the_target_with_the_messages(app: Application, tmp_path: Path) -> None:
    for number in range(5):
        app.put("copied", f"s{number}", b"state %d" % number)
    app.send("copied", *[f"s{number}/{each}" for each in range(3) for number in range(20)])
    with carried(tmp_path, "copied") as (made, route):
        run_until_copied(made, route, 60)
        assert made.reported(1, Noted) == []
        for number in range(20):
            assert app.get("to-copied", f"s{number}") == (b"state %d" % number if number < 5 else None)
        # The route holds a session that it has read; it is free after a while, and the application continues with its state.
        made.run(
            lambda: not route.source._links or all(each.locked is None for each in route.source._links.values()),
            SECONDS,
        )
        app.put("copied", "s1", b"changed")
        app.put("copied", "s2", None)
        app.send("copied", "s1/3", "s2/3")
        run_until_copied(made, route, 62)
    assert app.get("to-copied", "s1") == b"changed"
    assert app.get("to-copied", "s2") is None


def test_a_state_that_an_application_set_at_the_target_since_is_kept_over_restarts(
    app: Application, tmp_path: Path
) -> None:
    app.put("kept", "s", b"old")
    for number in range(3):
        app.send("kept", f"s/{number}")
        with carried(tmp_path, "kept") as (made, route):
            run_until_copied(made, route, 1)
        assert app.get("to-kept", "s") == (b"old", b"newer", b"newer")[number]
        app.put("to-kept", "s", b"newer")
    app.put("kept", "s", b"newest")
    app.send("kept", "s/3")
    with carried(tmp_path, "kept") as (made, route):
        run_until_copied(made, route, 1)
    assert app.get("to-kept", "s") == b"newest"


def test_a_task_that_is_given_another_queue_copies_the_states_to_it(app: Application, tmp_path: Path) -> None:
    app.put("moved", "s", b"state")
    app.send("moved", "s/0")
    with carried(tmp_path, "moved") as (made, route):
        run_until_copied(made, route, 1)
    # The task's name, and with it the file of what was copied, are the same.
    another = {"state_entity": "to-taken"}
    app.send("moved", "s/1")
    with host() as made:
        route = Route(made, 1, "moved", "to-taken", sessions=8, states=states(tmp_path, "to-moved") | another)
        run_until_copied(made, route, 1)
    assert app.get("to-taken", "s") == b"state"
    app.put("taken", "s", b"state")  # what was copied of this session was another queue's
    app.put("to-taken", "s", None)
    app.send("taken", "s/0")
    with host() as made:
        route = Route(made, 1, "taken", "to-taken", sessions=8, states=states(tmp_path, "to-moved") | another)
        run_until_copied(made, route, 1)
    assert app.get("to-taken", "s") == b"state"


def test_a_session_that_an_application_has_locked_at_the_target_delays_no_message(
    app: Application, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_copy, "FIRST_RETRY_SECONDS", 0.05)
    monkeypatch.setattr(state_copy, "LAST_RETRY_SECONDS", 0.2)
    for name in ("s", "t"):
        app.put("held", name, b"state")
    with app.client.get_queue_receiver("to-held", session_id="s") as holder, carried(tmp_path, "held") as (made, route):
        app.send("held", "s/0", "t/0")
        made.run(lambda: len(route.settled) == 2 and made.reported(1, Noted), SECONDS)
        assert app.get("to-held", "t") == b"state"
        (noted,) = made.reported(1, Noted)
        assert (
            noted.text
            == "the state of session 's' is not copied yet: another receiver has it locked at the target, 'to-held'"
        )
        for each in receive(holder, 1):
            holder.complete_message(each)
        app.send("held", "s/1", "t/1")  # and the next ones continue, too
        made.run(lambda: len(route.settled) == 4, SECONDS)
        assert holder.session.get_state() is None
        holder.close()
        made.run(lambda: not copies_of(route)._due, SECONDS)
        assert made.reported(1, Noted)[-1] == Noted("")
    assert app.get("to-held", "s") == b"state"


def test_a_state_that_is_set_without_a_message_is_found_by_a_look(
    app: Application, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_copier, "QUERY_SECONDS", 0.2)
    app.put("alone", "before", b"a")
    with carried(tmp_path, "alone") as (made, route):
        made.run(lambda: route.source._states is not None and copies_of(route)._copied, SECONDS)
        app.put("alone", "later", b"b")
        made.run(lambda: len(copies_of(route)._copied) == 2, SECONDS)
    assert (app.get("to-alone", "before"), app.get("to-alone", "later")) == (b"a", b"b")
    app.put("alone", "between", b"c")  # while no route runs
    with carried(tmp_path, "alone") as (made, route):
        made.run(lambda: len(copies_of(route)._copied) == 3, SECONDS)
    assert app.get("to-alone", "between") == b"c"


def test_a_look_takes_all_pages(app: Application, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_copier, "PAGE", 3)
    for number in range(10):
        app.put("pages", f"s{number}", b"x")
    with carried(tmp_path, "pages") as (made, route):
        made.run(lambda: len(copies_of(route)._copied) == 10, SECONDS)
        before, until = made.iterations, time.monotonic() + 1.0
        made.run(lambda: time.monotonic() >= until)
        assert made.iterations - before < 10  # nothing is left to do
    assert app.get("to-pages", "s9") == b"x"


def test_an_empty_state_is_copied_where_another_was(app: Application, tmp_path: Path) -> None:
    for state, expected in ((None, None), (b"full", b"full"), (None, None)):
        app.put("empty", "s", state)
        app.send("empty", "s/1")
        with carried(tmp_path, "empty") as (made, route):
            run_until_copied(made, route, 1)
        assert app.get("to-empty", "s") == expected


def test_who_knows_nothing_of_a_session_keeps_the_state_that_it_has_at_the_target(
    app: Application, tmp_path: Path
) -> None:
    """Another machine that takes the task over does not go back to what was copied long ago."""
    app.put("known", "s", b"old")
    app.put("to-known", "s", b"of the application")
    for name in ("one", "two"):
        app.send("known", "s/0")
        with carried(tmp_path / name, "known") as (made, route):
            run_until_copied(made, route, 1)
        assert app.get("to-known", "s") == b"of the application"
    app.put("known", "s", b"new")
    app.send("known", "s/1")
    with carried(tmp_path / "two", "known") as (made, route):
        run_until_copied(made, route, 1)
    assert app.get("to-known", "s") == b"new"


def test_what_was_due_when_a_route_ended_is_copied_by_the_next(
    app: Application, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.put("began", "s", b"state")
    app.send("began", "s/0")
    with monkeypatch.context() as patched, carried(tmp_path, "began") as (made, route):
        patched.setattr(state_copy.StateCopies, "to_set", lambda *_: ([], []))
        made.run(lambda: len(route.settled) == 1, SECONDS)
    assert app.get("to-began", "s") is None
    with carried(tmp_path, "began") as (made, route):
        made.run(lambda: copies_of(route)._copied and not copies_of(route)._due, SECONDS)
    assert app.get("to-began", "s") == b"state"


@pytest.mark.parametrize("queue", ["to-missing", "nothing"])
def test_a_target_that_cannot_be_used_delays_no_message(
    served: NamespaceProcess, app: Application, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, queue: str
) -> None:
    nowhere = "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=k;SharedAccessKey=a2V5;UseDevelopmentEmulator=true"
    monkeypatch.setenv("ELSEWHERE", nowhere if queue == "to-missing" else served.connection_string)
    app.put("missing", queue, b"state")
    app.send("missing", f"{queue}/0", f"{queue}/1")
    wrong = states(tmp_path, queue, "env:ELSEWHERE")
    with carried(tmp_path, "missing", states=wrong) as (made, route):
        made.run(lambda: len(route.settled) == 2 and made.reported(1, Noted), SECONDS)
        assert made.reported(1, Noted)[0].text.startswith("session states are not copied: at the target: ")
    with carried(tmp_path, "missing", states={"state_file": wrong["state_file"]}) as (made, route):
        made.run(lambda: copies_of(route)._copied and not copies_of(route)._due, SECONDS)
    assert app.get("to-missing", queue) == b"state"


def test_a_route_that_moves_what_is_there_ends_with_the_states(
    app: Application, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.put("present", "s", b"state")
    app.send("present", "s/0", "t/0")
    with carried(tmp_path, "present", only_present=True) as (made, route):
        made.run(lambda: made.reported(1, Exhausted), SECONDS)
        assert len(route.settled) == 2
        assert made.reported(1, Noted) == []
    assert app.get("to-present", "s") == b"state"
    # One that cannot be copied for now does not keep the route from its end, which reports it.
    monkeypatch.setattr(state_copier, "END_SECONDS", 1.0)
    app.put("present", "s", b"changed")
    app.send("present", "s/1")
    with (
        app.client.get_queue_receiver("to-present", session_id="s"),
        carried(tmp_path, "present", only_present=True) as (made, route),
    ):
        made.run(lambda: made.reported(1, Exhausted), SECONDS)
        (noted,) = made.reported(1, Noted)
        assert noted.text.startswith(
            "the state of session 's' is not copied yet: another receiver has it locked at the target"
        )
    with carried(tmp_path, "present") as (made, route):
        made.run(lambda: not copies_of(route)._due and copies_of(route)._copied, SECONDS)
    assert app.get("to-present", "s") == b"changed"


def test_namespaces_that_are_killed_and_locks_that_are_lost_leave_no_state_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"s{number}" for number in range(20)]
    config = (
        "limits: {min_lock_duration: 1s}\n"
        "queues: {a: {requires_session: true, lock_duration: 1s, max_delivery_count: 100}, b: {requires_session: true}}"
    )
    with namespace(tmp_path / "here", config=config) as running:
        monkeypatch.setenv("PORT_TEST", running.connection_string)
        with ServiceBusClient.from_connection_string(running.connection_string, retry_total=0) as client:
            app = Application(client)
            for name in names:
                app.put("a", name, name.encode())
            app.send("a", *[f"{name}/{number}" for number in range(5) for name in names])
        with host() as made:
            route = Route(made, 1, "a", "b", sessions=4, window=20, states=states(tmp_path, "b"))
            renew = SessionLink.renew
            monkeypatch.setattr(SessionLink, "renew", lambda *args: None)
            for share in (0.2, 0.6, 1.0):

                def has_moved(share: float = share) -> bool:
                    route.reopen()
                    return len(route.settled) >= share * 100

                made.run(has_moved, 60.0)
                monkeypatch.setattr(SessionLink, "renew", renew)
                running.kill()
                running.start()

            def are_copied() -> bool:
                route.reopen()
                copies = copies_of(route)
                return copies.is_done and len(copies._copied) == len(names)

            made.run(are_copied, 60.0)
        with ServiceBusClient.from_connection_string(running.connection_string, retry_total=0) as client:
            for name in names:
                assert Application(client).get("b", name) == name.encode()


FILE = """
isthmus: 1
namespaces:
  ewr: {connection: env:STATE_EWR}
  jfk: {connection: env:STATE_JFK}
tasks:
  orders: {pattern: move, source: ewr, queue: orders, target: jfk, ordering: session, session_state: copy}
"""


def eventually(condition: Callable[[], Any], what: str) -> None:
    limit = time.monotonic() + 60.0
    while not condition():
        assert time.monotonic() < limit, what
        time.sleep(0.02)


def remaining(served: NamespaceProcess) -> list[str]:
    """The MessageIds in `orders`, in the order of coming."""
    with open_client(endpoint_of_string(ConnectionString.parse(served.connection_string)), "orders", "test") as client:
        return [message_id(each) for each in Management(client, "orders").peek(0, 1000)]


@pytest.mark.parametrize("moved", [1, 40])
def test_a_worker_that_is_killed_leaves_no_state_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moved: int
) -> None:
    """Killed with -9 when so many of 40 messages are at the target, where an application holds one of the sessions."""
    config = "queues: {orders: {requires_session: true, max_delivery_count: 100}}"
    sessions = [f"s{number}" for number in range(8)]
    file = tmp_path / "isthmus.yaml"
    file.write_text(FILE)
    with namespace(tmp_path / "ewr", config=config) as ewr, namespace(tmp_path / "jfk", config=config) as jfk:
        monkeypatch.setenv("STATE_EWR", ewr.connection_string)
        monkeypatch.setenv("STATE_JFK", jfk.connection_string)
        with (
            ServiceBusClient.from_connection_string(ewr.connection_string, retry_total=0) as source,
            ServiceBusClient.from_connection_string(jfk.connection_string, retry_total=0) as target,
        ):
            there, here = Application(source), Application(target)
            for session in sessions:
                there.put("orders", session, session.encode())
            there.send("orders", *[f"{session}/{number}" for number in range(5) for session in sessions])
            with target.get_queue_receiver("orders", session_id="s0") as holder:
                run = HostedRun(file, tmp_path / "run0")
                eventually(
                    lambda: len(remaining(jfk)) >= moved, "an application that has locked a session stops no message"
                )
                run.end(signal.SIGKILL)
                run = HostedRun(file, tmp_path / "run1")
                eventually(lambda: len(set(remaining(jfk))) == 40, "every message is moved")
                assert holder.session.get_state() is None
                for session in sessions[1:]:
                    eventually(partial(_has_state, here, session, session.encode()), session)
            eventually(partial(_has_state, here, "s0", b"s0"), "the session that was locked")
            run.end()
            # What the application makes of it is kept, though messages come again and the worker is another one.
            here.put("orders", "s1", b"changed")
            run = HostedRun(file, tmp_path / "run2")
            there.send("orders", "s1/5", "s2/5")
            eventually(lambda: len(set(remaining(jfk))) == 42, "the last messages are moved")
            time.sleep(1.0)
            run.end()
            assert here.get("orders", "s1") == b"changed"
        found = list(dict.fromkeys(remaining(jfk)))
        for session in sessions:
            numbers = [int(each.partition("/")[2]) for each in found if each.partition("/")[0] == session]
            assert numbers == list(range(len(numbers)))


def _has_state(app: Application, session: str, state: bytes) -> bool:
    """Whether it is at the target; not known while the route holds the session."""
    try:
        return app.get("orders", session) == state
    except SessionCannotBeLockedError:
        return False
