"""The requests about the state of one session, over a simulated link."""

from __future__ import annotations

from typing import Any

import pytest

from isthmus.connectors.servicebus.port.session import state_link
from isthmus.connectors.servicebus.port.session.state_copy import digest_of
from isthmus.connectors.servicebus.port.session.state_link import LIMIT_SECONDS, StateLink, reads, sets, state_in
from isthmus.errors import IsthmusError, LockLostError, OperationTimeoutError, ServerBusyError
from isthmus.transport import Reply


class Node:
    """A management node: what is asked of it stays open until the test answers."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.replies: list[Reply] = []

    def start(self, operation: str, body: dict[str, Any]) -> Reply:
        self.asked.append((operation, body))
        self.replies.append(Reply("q"))
        return self.replies[-1]

    def answer(self, body: Any = None, error: IsthmusError | None = None) -> None:
        if error is None:
            self.replies[-1].resolve({"statusCode": 200}, body)
        else:
            self.replies[-1].fail(error)


class Receiver:
    """The link to a session."""

    def __init__(self, mark: Any, client: Any, path: str, **options: Any) -> None:
        self.client, self.options = client, options
        self.attached = False
        self.error: IsthmusError | None = None
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


class Client:
    error = None


@pytest.fixture(autouse=True)
def _played(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_link, "MarkedReceiver", Receiver)


class Played:
    def __init__(self, ask: Any) -> None:
        self.node, self.marks = Node(), 0
        self.link = StateLink("s", ask, self.mark, Client(), "q", 0.0)  # type: ignore[arg-type]
        self.receiver: Any = self.link._receiver

    def mark(self) -> None:
        self.marks += 1

    def advance(self, now: float = 0.0) -> bool:
        return self.link.advance(now, lambda: self.node)  # type: ignore[arg-type, return-value]

    @property
    def operations(self) -> list[str]:
        return [operation for operation, _ in self.node.asked]


def test_a_state_is_read_once_the_session_is_locked() -> None:
    played = Played(reads("s"))
    assert not played.advance()
    assert played.operations == []
    played.receiver.attached = True
    assert not played.advance()
    assert not played.advance()
    assert played.node.asked == [("get-session-state", {"session-id": "s"})]
    played.node.answer({"session-state": b"a"})
    assert played.marks == 1
    assert played.advance()
    assert played.link.error is None
    assert played.link.reply is not None
    assert state_in(played.link.reply) == b"a"
    played.link.close()
    assert played.receiver.is_closed


@pytest.mark.parametrize(("state", "sent"), [(b"a", b"a"), (None, None), (b"", None)])
def test_a_state_that_follows_another_is_set_at_once(state: bytes | None, sent: bytes | None) -> None:
    played = Played(sets("s", state, is_first=False))
    played.receiver.attached = True
    assert not played.advance()
    assert played.node.asked == [("set-session-state", {"session-id": "s", "session-state": sent})]
    played.node.answer()
    assert played.advance()
    assert played.link.error is None


@pytest.mark.parametrize(("there", "sets_it"), [(None, True), (b"", True), (b"b", False), (b"a", False)])
def test_the_first_state_is_set_only_where_there_is_none(there: bytes | None, sets_it: bool) -> None:
    played = Played(sets("s", b"a", is_first=True))
    played.receiver.attached = True
    assert not played.advance()
    played.node.answer({"session-state": there})
    assert played.advance() is not sets_it
    if sets_it:
        played.node.answer()
        assert played.advance()
    assert played.link.error is None
    assert played.operations == ["get-session-state", *(["set-session-state"] if sets_it else [])]


@pytest.mark.parametrize(("there", "sets_it"), [(b"b", True), (b"c", False)])
def test_a_first_state_follows_one_that_the_route_has_tried(there: bytes, sets_it: bool) -> None:
    played = Played(sets("s", b"a", is_first=True, own={digest_of(b"b")}))
    played.receiver.attached = True
    assert not played.advance()
    played.node.answer({"session-state": there})
    assert played.advance() is not sets_it
    assert played.operations == ["get-session-state", *(["set-session-state"] if sets_it else [])]


def test_a_session_that_another_has_locked_is_taken() -> None:
    played = Played(reads("s"))
    played.receiver.error = LockLostError("held")
    assert played.advance()
    assert played.link.is_taken
    assert played.link.error is played.receiver.error
    assert played.operations == []


@pytest.mark.parametrize("is_first", [True, False])
def test_a_link_that_is_lost_between_two_requests_has_set_nothing(is_first: bool) -> None:
    played = Played(sets("s", b"a", is_first=is_first))
    played.receiver.attached = True
    played.advance()
    played.receiver.error = LockLostError("lost")
    assert played.advance()
    assert isinstance(played.link.error, LockLostError)
    assert not played.link.is_taken


def test_what_the_node_refuses_is_reported() -> None:
    for answers in (0, 1):
        played = Played(sets("s", b"a", is_first=True))
        played.receiver.attached = True
        played.advance()
        for _ in range(answers):
            played.node.answer({"session-state": None})
            assert not played.advance()
        played.node.answer(error=ServerBusyError("busy"))
        assert played.advance()
        assert isinstance(played.link.error, ServerBusyError)


def test_it_is_over_after_a_while_whatever_the_namespace_does_i2() -> None:
    for attached in (False, True):
        played = Played(reads("s"))
        played.receiver.attached = attached
        assert not played.advance(LIMIT_SECONDS - 1)
        assert played.advance(LIMIT_SECONDS)
        assert isinstance(played.link.error, OperationTimeoutError)
