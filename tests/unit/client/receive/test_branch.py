"""One namespace's thread, stepped by the test, with receivers that only record their calls."""

from __future__ import annotations

import threading
import time
from typing import Any, Self, cast

import pytest
from azure.servicebus import ServiceBusReceivedMessage
from azure.servicebus.exceptions import MessageLockLostError

from isthmus.amqp import section
from isthmus.amqp.types import Timestamp
from isthmus.client import sdk
from isthmus.client.endpoint import Endpoint
from isthmus.client.failure import Failure
from isthmus.client.receive import branch as branch_module
from isthmus.client.receive.branch import Branch, Source
from isthmus.client.receive.merge import Action


class Message:
    """A delivery."""

    def __init__(self, *, is_deferred: bool = False) -> None:
        self._is_deferred_message = is_deferred


class Receiver:
    """One link of the SDK.

    Attributes:
        arriving: what the next call of `receive_messages` returns.
        settled: deliveries that were settled on this link.
    """

    def __init__(self) -> None:
        self.arriving: list[Message] = []
        self.settled: list[Message] = []

    def __enter__(self) -> Self:
        return self

    def close(self) -> None:
        pass

    def receive_messages(self, count: int, max_wait_time: float) -> list[Message]:
        found, self.arriving = self.arriving, []
        return found

    def complete_message(self, message: Message) -> None:
        self.settled.append(message)

    abandon_message = complete_message
    dead_letter_message = complete_message


class Client:
    """Of the SDK; also used as the endpoint that makes it."""

    host = "localhost"

    def __init__(self) -> None:
        self.receivers: list[Receiver] = []

    def client(self, **_: object) -> Client:
        return self

    def get_queue_receiver(self, entity: str, **options: object) -> Receiver:
        self.options = options
        self.receivers.append(Receiver())
        return self.receivers[-1]

    def close(self) -> None:
        pass


class Owner:
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    def on_open(self, side: str, identity: str) -> None:
        pass

    def on_messages(self, side: str, messages: list[Any]) -> None:
        self.messages += messages

    def on_lost(self, side: str, failure: Failure, error: BaseException) -> None:
        pass

    def on_poll(self, side: str) -> int:
        return 1


class Stage:
    """A branch, its receivers, and what it delivered."""

    def __init__(self) -> None:
        self.client = Client()
        self.owner = Owner()
        self.branch = Branch("primary", cast("Endpoint", self.client), Source(entity="orders"), self.owner)

    def open(self) -> Receiver:
        self.branch._circuit.succeeded()
        receiver = self.branch._open()
        assert receiver is not None
        return cast("Receiver", receiver)

    def deliver(self, *messages: Message) -> None:
        receiver = cast("Any", self.branch._receiver)
        receiver.arriving = list(messages)
        self.branch._poll(receiver)

    def run(self) -> None:
        self.branch._do_commands(cast("Any", self.branch._receiver))


def test_a_delivery_is_settled_on_the_link_that_it_came_by() -> None:
    stage = Stage()
    first, message = stage.open(), Message()
    stage.deliver(message)
    stage.branch.settle(cast("Any", message), Action.COMPLETE)
    stage.run()
    assert first.settled == [message]


@pytest.mark.parametrize("action", list(Action))
def test_a_delivery_of_a_link_that_is_lost_is_not_settled_on_the_next_one(action: Action) -> None:
    """B5: there its number is that of another message, which would be completed unhandled."""
    stage = Stage()
    stage.open()
    message = Message()
    stage.deliver(message)
    stage.branch._lose(ConnectionError("cut"))
    second = stage.open()
    stage.branch.settle(cast("Any", message), action)  # decided before the loss, carried out after it
    stage.run()
    assert second.settled == []
    assert stage.branch.state().settle_failures == 1


def test_a_delivery_of_a_link_that_is_lost_is_not_dead_lettered_on_the_next_one() -> None:
    """B5."""
    stage = Stage()
    stage.open()
    message = Message()
    stage.deliver(message)
    stage.branch._lose(ConnectionError("cut"))
    second = stage.open()
    future = stage.branch.settle_by(cast("Any", message), "dead_letter_message")
    stage.run()
    with pytest.raises(MessageLockLostError, match="it is delivered again"):
        future.result(0)
    assert second.settled == []


def test_a_deferred_message_is_settled_by_its_token_on_any_link() -> None:
    stage = Stage()
    second, message = stage.open(), Message(is_deferred=True)
    stage.branch.settle(cast("Any", message), Action.COMPLETE)
    stage.run()
    assert second.settled == [message]


def test_no_thread_of_the_sdk_reads_the_connection() -> None:
    """B1: what two threads read is handed over in any order."""
    stage = Stage()
    stage.open()
    assert stage.client.options["keep_alive"] == 0


def test_a_connection_of_which_nothing_is_received_is_kept_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    listened: list[object] = []
    monkeypatch.setattr(sdk, "listen", listened.append)
    monkeypatch.setattr(branch_module, "POLL_SECONDS", 0.0)
    stage = Stage()
    receiver = stage.open()
    stage.owner.on_poll = lambda side: 0  # type: ignore[method-assign]
    for _ in range(3):
        stage.deliver()
    assert listened == [receiver]


def test_what_is_asked_of_a_branch_that_has_ended_is_answered() -> None:
    """The caller has found it a moment before its end, and waits for the answer."""
    stage = Stage()
    stage.open()
    stage.branch._finish()
    future = stage.branch.call(lambda receiver: None)
    with pytest.raises(ConnectionError, match="closed"):
        future.result(0)


@pytest.mark.parametrize("what", ["complete", "abandon", "dead-letter"])
def test_a_lock_ends_by_the_clock_of_its_namespace(what: str) -> None:
    """With a clock that is ahead the SDK would refuse every settlement, and each message would end in the dead-letter queue."""
    stage = Stage()
    receiver = stage.open()
    annotations = {"x-opt-locked-until": Timestamp(1_767_225_600_000)}
    message: Any = ServiceBusReceivedMessage.from_bytes(section.encode_message(b"m1", annotations=annotations))
    until = message.locked_until_utc
    assert message._lock_expired

    def settle(message: Any, **_: object) -> None:
        if message._lock_expired:
            raise MessageLockLostError
        receiver.settled.append(message)

    for name in ("complete_message", "abandon_message", "dead_letter_message"):
        setattr(receiver, name, settle)
    receiver._await_settlement_outcome = True  # type: ignore[attr-defined]
    stage.deliver(message)
    if what == "dead-letter":
        future = stage.branch.settle_by(message, "dead_letter_message", reason="bad")
        stage.run()
        future.result(0)
    else:
        stage.branch.settle(message, Action.COMPLETE if what == "complete" else Action.ABANDON)
        stage.run()
    assert receiver.settled == [message]
    assert message.locked_until_utc == until


@pytest.mark.parametrize("is_old", [True, False])
def test_a_dead_letter_is_confirmed_by_its_namespace(is_old: bool) -> None:
    """Before 7.15 the SDK has no answer on the link: what was lost with the connection would be taken for done, and completed."""
    stage = Stage()
    receiver = stage.open()
    if not is_old:
        receiver._await_settlement_outcome = True  # type: ignore[attr-defined]
    deferred: list[bool] = []
    receiver.defer_message = lambda message: deferred.append(message._is_deferred_message)  # type: ignore[attr-defined]
    message = Message()
    stage.deliver(message)
    future = stage.branch.settle_by(cast("Any", message), "defer_message")
    stage.run()
    future.result(0)
    assert deferred == [is_old]  # by its lock token
    assert not message._is_deferred_message


class Hanging(Receiver):
    """A receiver whose namespace answers nothing, and whose calls end when its socket is shut down."""

    def __init__(self) -> None:
        super().__init__()
        self.is_cut = threading.Event()
        self.sock = self
        self._handler = self._connection = self._transport = self

    def shutdown(self, how: int) -> None:
        self.is_cut.set()

    def close(self) -> None:
        assert self.is_cut.wait(10)


def test_a_branch_that_is_left_ends_though_its_namespace_hangs() -> None:
    """B3: its thread and its connection would stay until TCP times out."""
    stage = Stage()
    stage.open()
    receiver = Hanging()
    stage.branch._receiver = cast("Any", receiver)
    stage.branch._at_work = None
    stage.branch.stop(0.0)
    stage.branch._thread = threading.Thread(target=stage.branch._finish, daemon=True)
    stage.branch._thread.start()
    stage.branch.check(time.monotonic())
    assert not receiver.is_cut.is_set()
    assert not stage.branch.is_ended
    stage.branch.check(time.monotonic() + 60.0)
    stage.branch._thread.join(10)
    assert stage.branch.is_ended


def test_a_connection_over_which_a_large_message_comes_is_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer would come behind it: without an answer in time, the connection was closed, with the message in part, again and again."""
    came = 2000
    monkeypatch.setattr(branch_module, "QUIET_SECONDS", -1.0)
    monkeypatch.setattr(branch_module, "received_bytes", lambda sock: came)
    stage = Stage()
    receiver: Any = stage.open()
    peeks: list[float] = []
    receiver.peek_messages = lambda count, timeout: peeks.append(timeout)
    for _ in range(3):
        came += 100_000
        stage.deliver()
    assert peeks == []
    came += 8  # a keep-alive
    stage.deliver()
    assert peeks == [branch_module.PEEK_SECONDS]
