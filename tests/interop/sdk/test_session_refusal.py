"""A route of sessions between real namespaces, many of which begin with a message that the target refuses without a reason.

More sessions begin so than are locked at once, and what the target takes waits behind all of them. The target is partitioned, the source is not: it takes
no message whose partition key differs from its session. It says why; the test has its answer taken for one without a reason.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing import get_context
from multiprocessing.context import SpawnProcess

import pytest
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusClient, ServiceBusMessage, ServiceBusSubQueue
from azure.servicebus.exceptions import OperationTimeoutError

from isthmus.bridge import registry
from isthmus.bridge.delivery.settings import DeliverySettings
from isthmus.bridge.host.sender import handle
from isthmus.bridge.lease import state
from isthmus.bridge.refusal import Refusal, RefusalKind
from isthmus.bridge.route_spec import End, RouteSpec
from isthmus.connectors.servicebus.port import target
from isthmus.connectors.servicebus.refusal import refusal_of
from isthmus.errors import IsthmusError
from isthmus.testing.bridge.join import Join, Side
from isthmus.testing.namespace import NamespaceProcess, namespace

SOURCE = (
    "queues: {q: {requires_session: true, lock_duration: 5s, max_delivery_count: 3}}\nlimits: {min_lock_duration: 1s}\n"
)
TARGET = "queues: {q: {requires_session: true, enable_partitioning: true}}\n"
# Besides those, at most 16 more sessions are locked in one opening.
HELD, REFUSED = 2, 20
TARGET_SECONDS = 6.0
WAIT_SECONDS = 120.0


def carry(source: str, folder: str) -> None:
    """The process of a run: a reader and a sink, for which what takes minutes takes seconds."""

    def unclear(error: IsthmusError) -> Refusal:
        found = refusal_of(error)
        return found._replace(kind=RefusalKind.UNCLEAR) if found.kind is RefusalKind.MESSAGE else found

    target.refusal_of = unclear
    handle.DeliverySettings = partial(DeliverySettings, set_aside_seconds=2.0)
    state.RETRY_LIMIT_SECONDS = 1.0
    os.environ |= {"SESSION_SOURCE": source, "SESSION_TARGET": folder}
    with Join((route(),), lambda: Side(registry.connector, lambda: None, lambda: None)):
        threading.Event().wait()


@pytest.fixture
def served() -> Iterator[tuple[NamespaceProcess, NamespaceProcess]]:
    with namespace(config=SOURCE) as first, namespace(config=TARGET) as last:
        yield first, last


@contextmanager
def carried(served: tuple[NamespaceProcess, NamespaceProcess]) -> Iterator[SpawnProcess]:
    run = get_context("spawn").Process(target=carry, args=[each.connection_string for each in served], daemon=True)
    run.start()
    try:
        yield run
    finally:
        run.kill()
        run.join()


def route() -> RouteSpec:
    options = {"entity": "q"}
    source = End("servicebus", "source", options | {"connection": "env:SESSION_SOURCE", "sessions": str(HELD)})
    target = End("servicebus", "target", options | {"connection": "env:SESSION_TARGET"})
    return RouteSpec(name="r", source=source, target=target, target_seconds=TARGET_SECONDS)


def send(client: ServiceBusClient, session: str, name: str, *, is_refused: bool = False) -> None:
    message = ServiceBusMessage(b"x", session_id=session, message_id=name)
    if is_refused:
        message.raw_amqp_message.annotations = {b"x-opt-partition-key": "another"}
    with client.get_queue_sender("q") as sender:
        sender.send_messages(message)


def dead(client: ServiceBusClient) -> dict[str, int]:
    """What is dead-lettered, with its delivery count."""
    with client.get_queue_receiver("q", sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
        found = receiver.peek_messages(max_message_count=2 * REFUSED)
    return {str(each.message_id): each.delivery_count or 0 for each in found}


def take(client: ServiceBusClient, found: dict[str, list[str]]) -> None:
    """Adds what the target has, by session."""
    try:
        with client.get_queue_receiver("q", session_id=NEXT_AVAILABLE_SESSION, max_wait_time=2) as receiver:
            names = found.setdefault(str(receiver.session.session_id), [])
            while messages := receiver.receive_messages(max_message_count=20, max_wait_time=0.2):
                for each in messages:
                    receiver.complete_message(each)
                    names.append(str(each.message_id))
    except OperationTimeoutError:
        return  # no session has messages now


def differing(found: dict[str, list[str]], expected: dict[str, list[str]]) -> dict[str, list[str]]:
    """What was found of sessions of which something else was expected."""
    return {
        session: found.get(session, []) for session in found | expected if found.get(session) != expected.get(session)
    }


@pytest.mark.parametrize(
    "killed", ["", *(pytest.param(each, marks=pytest.mark.soak) for each in ("run", "source", "target"))]
)
def test_all_are_set_aside_once_one_other_was_taken(
    served: tuple[NamespaceProcess, NamespaceProcess], killed: str
) -> None:
    sessions = [f"s{number:02}" for number in range(REFUSED)]
    source, _ = served
    with ExitStack() as stack:
        # Clients are made once: those of a namespace that is killed connect again.
        first, last = (
            stack.enter_context(ServiceBusClient.from_connection_string(each.connection_string)) for each in served
        )
        for session in sessions:
            send(first, session, f"{session}/0", is_refused=True)
        with first.get_queue_receiver("q", session_id="s07") as receiver:
            receiver.session.set_state(b"kept")
        run = stack.enter_context(carried(served))
        time.sleep(12.0)  # several openings
        assert dead(first) == {}
        if killed == "run":
            run.kill()
            stack.enter_context(carried(served))
        elif killed:
            served[killed == "target"].kill()
            served[killed == "target"].start()
        others = 0
        limit = time.monotonic() + WAIT_SECONDS
        # What is refused for the first time once one of these was taken waits for the next.
        while len(dead(first)) < REFUSED:
            assert time.monotonic() < limit, sorted(dead(first))
            send(first, "t", f"t/{others}")
            others += 1
            time.sleep(5.0)
        counts = dead(first)
        assert sorted(counts) == [f"{session}/0" for session in sessions]
        if killed != "source":  # it does not learn that what it had locked was given back
            assert max(counts.values()) <= 1, counts
        for session in sessions:
            send(first, session, f"{session}/1")
            send(first, session, f"{session}/2")
        expected = {session: [f"{session}/1", f"{session}/2"] for session in sessions} | {
            "t": [f"t/{each}" for each in range(others)]
        }
        found: dict[str, list[str]] = {}
        firsts: dict[str, list[str]] = {}
        limit = time.monotonic() + WAIT_SECONDS
        while firsts != expected and time.monotonic() < limit:
            take(last, found)
            firsts = {session: list(dict.fromkeys(names)) for session, names in found.items()}
        assert differing(firsts, expected) == {}
        if not killed:
            assert differing(found, expected) == {}  # and none twice
    with (
        ServiceBusClient.from_connection_string(source.connection_string) as client,
        client.get_queue_receiver("q", session_id="s07") as receiver,
    ):
        assert receiver.session.get_state() == b"kept"
