from __future__ import annotations

import os
import queue
import socket
import threading
import time
from collections.abc import Iterator
from itertools import chain, count, repeat
from types import SimpleNamespace
from typing import Any, Self, cast

import pytest
from azure.servicebus.exceptions import ServiceBusError

from isthmus.client import sdk
from isthmus.client.endpoint import Endpoint
from isthmus.client.failure import Failure
from isthmus.client.send import lane as lane_module
from isthmus.client.send.lane import Lane
from isthmus.client.send.parcel import Parcel

WAIT_SECONDS = 10.0
PARCEL = Parcel((b"",), ("m1",))


class RefusedError(ServiceBusError):
    """Of the message; the SDK closes its connection all the same, as after most errors."""

    condition = b"amqp:not-allowed"


class FakeSender:
    """The SDK's sender: it refuses the first message, and opens another connection for the second, which is never answered."""

    def __init__(self) -> None:
        self._config = SimpleNamespace(try_timeout=1.0)
        self._handler: Any = None
        self.sockets: list[socket.socket] = []
        self.sent = 0
        self.connects = threading.Event()
        self.is_connected = threading.Event()
        self.ends = threading.Event()
        self.is_stopped = threading.Event()  # set: it makes its second connection only when `goes_on` is
        self.goes_on = threading.Event()

    def _create_handler(self, auth: object) -> None:
        ours, theirs = socket.socketpair()
        if self.sockets:
            self.sockets[-1].close()  # the one before
        self.sockets += [theirs, ours]
        transport = SimpleNamespace(sock=ours)
        self._handler = SimpleNamespace(_connection=SimpleNamespace(_transport=transport))

    def _open(self) -> None:
        self._create_handler(None)

    def __enter__(self) -> Self:
        self._open()
        return self

    def send_messages(self, batch: object, timeout: float) -> None:
        self.sent += 1
        if self.sent == 1:
            raise RefusedError("no session")
        self.connects.set()
        try:
            if self.is_stopped.is_set():
                assert self.goes_on.wait(WAIT_SECONDS)
            self._open()
            ours = self._handler._connection._transport.sock
            ours.settimeout(WAIT_SECONDS)
            self.is_connected.set()
            assert ours.recv(1) == b""
        finally:
            self.ends.set()

    def close(self) -> None:
        pass


@pytest.fixture
def sender(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSender]:
    made = FakeSender()
    monkeypatch.setattr(sdk, "batch_of", lambda *args: object())
    yield made
    for each in made.sockets:
        each.close()


def lane_of(sender: FakeSender) -> Lane:
    client = SimpleNamespace(get_queue_sender=lambda entity, **options: sender, close=lambda: None)
    endpoint = SimpleNamespace(client=lambda **options: client, given="here")
    return Lane(cast("Endpoint", endpoint), "orders")


def test_what_is_given_up_is_cut_off_also_on_a_connection_that_the_sdk_made_later(sender: FakeSender) -> None:
    """I4; a thread that waited on would send what its caller has given up, once the namespace answers again."""
    lane = lane_of(sender)
    assert lane.send(PARCEL, WAIT_SECONDS).failure is Failure.REFUSED
    first = lane._worker
    sending = lane.start(PARCEL, WAIT_SECONDS)
    assert sender.is_connected.wait(WAIT_SECONDS)
    assert sending.expire().failure is Failure.UNKNOWN
    assert lane._worker is first
    assert sender.ends.wait(WAIT_SECONDS / 2)
    lane.close()


def test_what_was_given_up_before_the_sdk_made_another_connection_is_not_sent_over_it(sender: FakeSender) -> None:
    """I4; there is no socket yet that could be shut down, and the namespace would take what its caller sends again elsewhere."""
    lane = lane_of(sender)
    assert lane.send(PARCEL, WAIT_SECONDS).failure is Failure.REFUSED
    sender.is_stopped.set()
    sending = lane.start(PARCEL, WAIT_SECONDS)
    assert sender.connects.wait(WAIT_SECONDS)
    assert sending.expire().failure is Failure.UNKNOWN
    sender.goes_on.set()
    assert sender.ends.wait(WAIT_SECONDS / 2)
    assert not sender.is_connected.is_set()
    lane.close()


def test_a_forked_child_has_a_connection_of_its_own_and_leaves_its_parents_alone(
    sender: FakeSender, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread of the parent's connection does not run in a child, which would wait for it, and then shut down what both have."""
    parents = lane_of(sender)
    assert parents.send(PARCEL, WAIT_SECONDS).failure is Failure.REFUSED
    theirs = sender.sockets[0]
    theirs.setblocking(False)
    worker = parents._worker
    assert worker is not None
    pid = os.getpid()
    tasks, worker._tasks = worker._tasks, queue.SimpleQueue()  # whose thread is not in the child
    monkeypatch.setattr(os, "getpid", lambda: pid + 1)
    worker.abandon()  # by an attempt that was begun before the fork
    with pytest.raises(BlockingIOError):
        theirs.recv(1)
    worker.has_ended = False
    sender.sent = 0
    assert parents.send(PARCEL, WAIT_SECONDS).failure is Failure.REFUSED
    assert parents._worker is not worker
    parents.close()
    monkeypatch.undo()
    worker._tasks = tasks
    worker.finish(WAIT_SECONDS)


def test_the_socket_below_a_websocket_is_found() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        websocket = SimpleNamespace(sock=ours)
        handler = SimpleNamespace(_connection=SimpleNamespace(_transport=SimpleNamespace(sock=websocket)))
        assert sdk.socket_of(handler) is ours


def patient_sender(sender: FakeSender, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """It takes so long to send a message."""
    monkeypatch.setattr(sender, "send_messages", lambda batch, timeout: time.sleep(seconds))


def test_a_patient_attempt_goes_on_while_its_bytes_arrive(sender: FakeSender, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow network takes longer for a batch than the namespace may take to answer it; given up, it would be sent for ever."""
    patient_sender(sender, monkeypatch, 0.5)
    arrived = count(0, 4096)
    monkeypatch.setattr(lane_module, "delivered_bytes", lambda sock: next(arrived))
    lane = lane_of(sender)
    assert lane.send(PARCEL, 0.1, is_patient=True).ok
    lane.close()


def test_an_attempt_that_is_not_patient_ends_in_time(sender: FakeSender, monkeypatch: pytest.MonkeyPatch) -> None:
    patient_sender(sender, monkeypatch, 0.5)
    arrived = count(0, 4096)
    monkeypatch.setattr(lane_module, "delivered_bytes", lambda sock: next(arrived))
    lane = lane_of(sender)
    assert lane.send(PARCEL, 0.1).failure is Failure.UNKNOWN
    lane.close()


def test_a_patient_attempt_ends_when_nothing_more_arrives(sender: FakeSender, monkeypatch: pytest.MonkeyPatch) -> None:
    patient_sender(sender, monkeypatch, 2.0)
    arrived = chain((0, 4096, 8192), repeat(8192 + 8))  # a keep-alive
    monkeypatch.setattr(lane_module, "delivered_bytes", lambda sock: next(arrived))
    lane = lane_of(sender)
    began = time.monotonic()
    attempt = lane.send(PARCEL, 0.1, is_patient=True)
    assert (attempt.failure, attempt.is_definite) == (Failure.UNKNOWN, False)
    assert 0.3 <= time.monotonic() - began < 1.5
    lane.close()


def test_writes_take_as_long_as_the_attempt(sender: FakeSender, monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK's own 0.2 s would end the connection at each message that a slow network does not take in that time."""
    seen: list[float | None] = []

    def note(batch: object, timeout: float) -> None:
        seen.append(sdk.socket_of(sender._handler).gettimeout())

    monkeypatch.setattr(sender, "send_messages", note)
    lane = lane_of(sender)
    assert lane.send(PARCEL, 5.0).ok
    assert lane.send(PARCEL, 5.0, is_patient=True).ok
    first, second = seen
    assert first is not None
    assert 4.0 < first <= 5.0
    assert second is None
    lane.close()
