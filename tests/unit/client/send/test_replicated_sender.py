from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage

from harness.check.until import passes
from isthmus.client import sdk
from isthmus.client.failure import Failure
from isthmus.client.outbox.store import status
from isthmus.client.send.durable_sender import DurableSender
from isthmus.client.send.lane import Attempt
from isthmus.client.send.parcel import Parcel
from isthmus.client.send.replicated_sender import AsyncReplicatedSender, ReplicatedSender
from isthmus.client.send.replication import SendResult, Side
from isthmus.client.send.role_state import RoleState
from isthmus.errors import StoreError

MESSAGE = ServiceBusMessage("one", message_id="m1")
PARCEL = Parcel((b"",), ("m1",))
NOWHERE = "Endpoint=sb://127.0.0.1:1/;SharedAccessKeyName=a;SharedAccessKey=b;UseDevelopmentEmulator=true"


def test_the_file_of_the_roles_has_the_last_swap_whichever_thread_writes_last(tmp_path: Path) -> None:
    with ReplicatedSender(NOWHERE, NOWHERE, "orders", "passive", state=tmp_path / "roles") as sender:
        first = sender._switch("secondary")
        second = sender._switch("primary")
        sender._save(second)
        sender._save(first)
        assert sender.active == "primary"
    assert RoleState(tmp_path / "roles").load() is Side.PRIMARY


def test_a_warm_up_that_hangs_is_given_up_without_the_connection_that_replaced_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its thread hangs where no socket is to be cut, e.g. in the resolution of a name."""
    with ReplicatedSender(NOWHERE, NOWHERE, "orders", "passive", connect_timeout=0.1, attempt_timeout=0.1) as sender:
        lane = sender._lanes[Side.SECONDARY]
        if lane._worker is not None:
            lane._worker.finish(10)
        hangs, goes_on = threading.Event(), threading.Event()
        monkeypatch.setattr(sdk, "batch_of", lambda *args: object())
        fake: Any = SimpleNamespace(
            _config=SimpleNamespace(), _create_handler=lambda auth: None, _open=lambda: None, __enter__=lambda: None,
            send_messages=lambda batch, timeout: None, close=lambda: None, get_queue_sender=lambda *args, **options: fake,
        )  # fmt: skip

        def client(**options: Any) -> Any:
            if not hangs.is_set():
                hangs.set()
                goes_on.wait(10)
            return fake

        monkeypatch.setattr(lane, "endpoint", SimpleNamespace(client=client, given="here"))
        sender._replication.circuits[Side.SECONDARY].succeeded()
        with sender._lock:
            sender._warm()
        assert hangs.wait(10)
        assert not lane.send(PARCEL, 0.05).ok  # behind the opening
        assert lane.send(PARCEL, 10).ok
        assert sender._warming is not None
        while sender._warming.seconds_left:
            threading.Event().wait(0.01)
        with sender._lock:
            sender._warm()
        assert lane.is_open
        goes_on.set()


def test_a_warm_up_that_cannot_begin_takes_nothing_from_a_send_that_was_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """E.g. at the end of the interpreter, which begins no thread any more."""

    def start_opening(timeout: float) -> Any:
        raise RuntimeError("can't start new thread")

    with ReplicatedSender(NOWHERE, NOWHERE, "orders", "passive") as sender:
        sender._replication.circuits[Side.SECONDARY].succeeded()
        monkeypatch.setattr(sender._lanes[Side.SECONDARY], "start_opening", start_opening)
        result = SendResult(taken=("primary",))
        assert sender._count(PARCEL, result).taken == ("primary",)
        assert sender.statistics().taken["primary"] == 1


def closed(parcel: Parcel, timeout: float) -> Any:
    raise ValueError("the sender of 'orders' is closed")


def taken(parcel: Parcel, timeout: float) -> Any:
    done: Future[Attempt] = Future()
    done.set_result(Attempt())
    return SimpleNamespace(done=done, wait=done.result, seconds_left=1.0)


def test_what_one_side_took_is_reported_though_the_sender_is_closed_before_the_other_is_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with ReplicatedSender(NOWHERE, NOWHERE, "orders") as sender:
        monkeypatch.setattr(sender._lanes[Side.PRIMARY], "start", taken)
        monkeypatch.setattr(sender._lanes[Side.SECONDARY], "start", closed)
        result = sender.send_messages(MESSAGE)
        assert (result.taken, result.missed, result.unknown) == (("primary",), ("secondary",), ())
        monkeypatch.setattr(sender._lanes[Side.PRIMARY], "start", closed)
        with pytest.raises(ValueError, match="closed"):
            sender.send_messages(MESSAGE)


async def test_and_so_by_the_one_for_asyncio(monkeypatch: pytest.MonkeyPatch) -> None:
    async with AsyncReplicatedSender(NOWHERE, NOWHERE, "orders") as sender:
        monkeypatch.setattr(sender._lanes[Side.PRIMARY], "start", taken)
        monkeypatch.setattr(sender._lanes[Side.SECONDARY], "start", closed)
        result = await sender.send_messages(MESSAGE)
        assert (result.taken, result.missed) == (("primary",), ("secondary",))


async def test_what_one_side_took_of_a_send_that_was_cancelled_is_kept_for_the_other_i3(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that hangs up cancels the handler of its request: the message was at one namespace for good."""
    answer: Future[Attempt] = Future()
    has_begun = asyncio.Event()

    def away(parcel: Parcel, timeout: float) -> Any:
        has_begun.set()
        return SimpleNamespace(done=answer, seconds_left=30.0)

    async with AsyncReplicatedSender(NOWHERE, NOWHERE, "orders", outbox=tmp_path / "outbox") as sender:
        for circuit in sender._replication.circuits.values():
            circuit.succeeded()
        monkeypatch.setattr(sender._lanes[Side.PRIMARY], "start", taken)
        monkeypatch.setattr(sender._lanes[Side.SECONDARY], "start", away)
        sending = asyncio.create_task(sender.send_messages(MESSAGE))
        await has_begun.wait()
        sending.cancel()
        closing = asyncio.create_task(sender.close())
        await passes(2)
        closing.cancel()  # as where a time limit ends in a scope that is cancelled itself
        for cancelled in (sending, closing):
            with pytest.raises(asyncio.CancelledError):
                await cancelled
        answer.set_result(Attempt(ConnectionError("reset"), Failure.GONE))
    assert sender.statistics().kept == {"primary": 0, "secondary": 1}
    assert status(tmp_path / "outbox" / "secondary").messages == 1


def test_what_one_side_took_of_a_send_that_was_interrupted_is_kept_for_the_other_i3(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By Ctrl+C, or by a signal with which a framework limits the time of a task."""
    answer: Future[Attempt] = Future()
    waits = [KeyboardInterrupt()]

    def wait() -> Attempt:
        if waits:
            raise waits.pop()
        return answer.result(30)

    def away(parcel: Parcel, timeout: float) -> Any:
        return SimpleNamespace(done=answer, wait=wait, seconds_left=30.0)

    with ReplicatedSender(NOWHERE, NOWHERE, "orders", outbox=tmp_path / "outbox") as sender:
        for circuit in sender._replication.circuits.values():
            circuit.succeeded()
        monkeypatch.setattr(sender._lanes[Side.PRIMARY], "start", taken)
        monkeypatch.setattr(sender._lanes[Side.SECONDARY], "start", away)
        with pytest.raises(KeyboardInterrupt):
            sender.send_messages(MESSAGE)
        answer.set_result(Attempt(ConnectionError("reset"), Failure.GONE))
    assert sender.statistics().kept == {"primary": 0, "secondary": 1}
    assert status(tmp_path / "outbox" / "secondary").messages == 1


def test_a_send_that_is_interrupted_while_it_stores_the_message_stores_it_i3(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a side is away, most of the time of a send is that of the disk."""
    keep, interrupts = DurableSender.keep, [KeyboardInterrupt()]

    def kept(sender: DurableSender, parcel: Parcel) -> None:
        if interrupts:
            raise interrupts.pop()
        keep(sender, parcel)

    monkeypatch.setattr(DurableSender, "keep", kept)
    with ReplicatedSender(NOWHERE, NOWHERE, "orders", outbox=tmp_path / "outbox") as sender:
        for circuit in sender._replication.circuits.values():
            circuit.succeeded()
        monkeypatch.setattr(sender._lanes[Side.PRIMARY], "start", taken)
        monkeypatch.setattr(sender._lanes[Side.SECONDARY], "start", no_thread)
        with pytest.raises(KeyboardInterrupt):
            sender.send_messages(MESSAGE)
    assert sender.statistics().kept == {"primary": 0, "secondary": 1}
    assert status(tmp_path / "outbox" / "secondary").messages == 1


def test_a_switch_that_does_not_survive_a_restart_is_reported(tmp_path: Path) -> None:
    """It holds in this process; a fail-over, after which the message has been taken, is logged alone."""
    folder = tmp_path / "state"
    folder.mkdir()
    with ReplicatedSender(NOWHERE, NOWHERE, "orders", "passive", state=folder / "roles") as sender:
        folder.rmdir()
        with pytest.raises(StoreError):
            sender.switch_to("secondary")
        assert sender.active == "secondary"
        sender._save(Side.SECONDARY)


def no_thread(parcel: Parcel, timeout: float) -> Any:
    raise RuntimeError("can't start new thread")


@pytest.mark.parametrize("mode", ["active", "passive"])
def test_a_side_whose_lane_begins_no_thread_does_not_keep_the_other_from_taking_a_message(
    mode: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of the other side has one already."""
    with ReplicatedSender(NOWHERE, NOWHERE, "orders", mode) as sender:
        for circuit in sender._replication.circuits.values():
            circuit.succeeded()
        monkeypatch.setattr(sender._lanes[Side.PRIMARY], "start", no_thread)
        monkeypatch.setattr(sender._lanes[Side.SECONDARY], "start", taken)
        assert sender.send_messages(MESSAGE).taken == ("secondary",)


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), StoreError("no lock")])
def test_an_outbox_that_cannot_be_looked_at_keeps_no_message_from_a_namespace(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It only asked which side still has to get earlier ones."""

    def fails(sender: object, *_: object) -> Any:
        raise error

    with ReplicatedSender(NOWHERE, NOWHERE, "orders", outbox=tmp_path / "outbox") as sender:
        monkeypatch.setattr(DurableSender, "is_empty", property(fails))
        monkeypatch.setattr(DurableSender, "keep", fails)
        for circuit in sender._replication.circuits.values():
            circuit.succeeded()
        for side in Side:
            monkeypatch.setattr(sender._lanes[side], "start", taken)
        assert sender.send_messages(MESSAGE).taken == ("primary", "secondary")
        monkeypatch.setattr(sender._lanes[Side.SECONDARY], "start", no_thread)
        result = sender.send_messages(MESSAGE)
        assert (result.taken, result.pending, result.missed) == (("primary",), (), ("secondary",))
        monkeypatch.undo()
