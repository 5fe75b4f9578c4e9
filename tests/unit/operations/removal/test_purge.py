"""The results of a removal that others disturb."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from isthmus.entities.queue.run import RunSet
from isthmus.errors import (
    InvalidArgumentError,
    IsthmusError,
    MessageNotFoundError,
    MessageTooLargeError,
    SessionLockLostError,
)
from isthmus.operations.peek import Census
from isthmus.operations.removal import purge as module
from isthmus.operations.removal.purge import Removal, remove


def test_what_was_removed_of_a_session_that_is_lost_meanwhile_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = RunSet(), RunSet()
    first.add(1, 5)
    second.add(6, 8)
    meant = Census(RunSet(), RunSet(), RunSet())
    meant.active.add(1, 8)
    sessions = {"a": Census(first, RunSet(), RunSet()), "b": Census(second, RunSet(), RunSet())}
    lost = SessionLockLostError("q", "a")
    lost.attributes["completed"] = 2

    def sweep(client: Any, path: str, wanted: RunSet, take: Any, *, session_id: str, **_: Any) -> int:
        if session_id == "a":
            raise lost
        return wanted.count()

    monkeypatch.setattr(module, "sweep", sweep)
    monkeypatch.setattr(module, "Management", lambda *_: SimpleNamespace(close=lambda: None))
    monkeypatch.setattr(module, "requires_sessions", lambda *_: True)
    monkeypatch.setattr(module, "by_session", lambda *_: sessions)
    client: Any = None
    assert remove(client, "q", meant) == Removal(removed=5, left=3)


class Deferring:
    """A namespace whose deferred messages of a session go one request at a time; the session's lock is lost at `lost_at`."""

    def __init__(self, lost_at: int = -1) -> None:
        self.lost_at, self.deleted, self.renewals = lost_at, list[int](), 0

    def delete(self, management: Any, numbers: list[int], session_id: str) -> None:
        if self.lost_at in numbers:
            raise SessionLockLostError("q", session_id)
        self.deleted += numbers

    def renew_session(self, session_id: str) -> None:
        self.renewals += 1

    def close(self) -> None:
        pass


def with_deferred(monkeypatch: pytest.MonkeyPatch, namespace: Deferring, deferred: RunSet) -> Census:
    meant = Census(RunSet(), RunSet(), RunSet())
    for first, last in deferred:
        meant.deferred.add(first, last)
    session = {"a": Census(RunSet(), deferred, RunSet())}
    receiver = SimpleNamespace(wait_attached=lambda: SimpleNamespace(close=lambda: None))
    monkeypatch.setattr(module, "sweep", lambda *_, **__: 0)
    monkeypatch.setattr(module, "Management", lambda *_: namespace)
    monkeypatch.setattr(module, "Receiver", lambda *_, **__: receiver)
    monkeypatch.setattr(module, "_delete_deferred", namespace.delete)
    monkeypatch.setattr(module, "requires_sessions", lambda *_: True)
    monkeypatch.setattr(module, "by_session", lambda *_: session)
    return meant


def some() -> RunSet:
    found = RunSet()
    for number in (1, 3, 5, 7):
        found.add(number, number)
    return found


def test_deferred_messages_that_went_before_the_session_was_lost_count(monkeypatch: pytest.MonkeyPatch) -> None:
    namespace = Deferring(lost_at=5)
    meant = with_deferred(monkeypatch, namespace, some())
    client: Any = None
    assert remove(client, "q", meant) == Removal(removed=2, left=2)
    assert namespace.deleted == [1, 3]


def test_the_session_is_locked_while_its_deferred_messages_go(monkeypatch: pytest.MonkeyPatch) -> None:
    namespace, now = Deferring(), [0.0]

    def monotonic() -> float:
        now[0] += 1.0
        return now[0]

    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=monotonic))
    meant = with_deferred(monkeypatch, namespace, some())
    client: Any = None
    assert remove(client, "q", meant) == Removal(removed=4, left=0)
    assert namespace.renewals


@pytest.mark.parametrize("refusal", [InvalidArgumentError("over 134217728 bytes together"), MessageTooLargeError()])
def test_deferred_messages_that_are_too_large_for_one_answer_go_in_parts(
    monkeypatch: pytest.MonkeyPatch, refusal: IsthmusError
) -> None:
    """A client that deletes deferred messages receives them."""
    deleted: list[int] = []

    def delete(management: Any, numbers: list[int], session_id: str | None = None) -> None:
        if len(numbers) > 3:
            raise refusal
        if 7 in numbers:
            raise MessageNotFoundError
        deleted.extend(numbers)

    numbers = RunSet()
    numbers.add(1, 20)
    meant = Census(RunSet(), numbers, RunSet())
    monkeypatch.setattr(module, "sweep", lambda *_, **__: 0)
    monkeypatch.setattr(module, "Management", lambda *_: SimpleNamespace(close=lambda: None))
    monkeypatch.setattr(module, "requires_sessions", lambda *_: False)
    monkeypatch.setattr(module, "_delete_deferred", delete)
    client: Any = None
    assert remove(client, "q", meant) == Removal(removed=19, left=1)
    assert deleted == [number for number in range(1, 21) if number != 7]


def test_one_deferred_message_that_is_refused_ends_the_removal(monkeypatch: pytest.MonkeyPatch) -> None:
    def delete(management: Any, numbers: list[int], session_id: str | None = None) -> None:
        if 4 in numbers:
            raise InvalidArgumentError("no")

    numbers = RunSet()
    numbers.add(1, 4)
    monkeypatch.setattr(module, "sweep", lambda *_, **__: 0)
    monkeypatch.setattr(module, "Management", lambda *_: SimpleNamespace(close=lambda: None))
    monkeypatch.setattr(module, "requires_sessions", lambda *_: False)
    monkeypatch.setattr(module, "_delete_deferred", delete)
    client: Any = None
    with pytest.raises(InvalidArgumentError) as caught:
        remove(client, "q", Census(RunSet(), numbers, RunSet()))
    assert caught.value.attributes["completed"] == 3


def of(states: str, count: int) -> Census:
    found = Census(RunSet(), RunSet(), RunSet())
    for state in states.split():
        getattr(found, state).add(1, count)
    return found


def asked(monkeypatch: pytest.MonkeyPatch, sweep: Any, *, cancel: Any = lambda *_: None) -> None:
    monkeypatch.setattr(module, "sweep", sweep)
    monkeypatch.setattr(module, "_cancel", cancel)
    monkeypatch.setattr(module, "Management", lambda *_: SimpleNamespace(close=lambda: None))
    monkeypatch.setattr(module, "requires_sessions", lambda *_: False)


def test_i3_what_went_before_it_was_stopped_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped: list[bool] = []

    def sweep(*_: Any, is_stopped: Any) -> int:
        assert not is_stopped()
        stopped.append(True)
        assert is_stopped()
        return 7

    asked(monkeypatch, sweep, cancel=lambda *_: pytest.fail("nothing more is removed"))
    client: Any = None
    done = remove(client, "q", of("active scheduled", 10), is_stopped=lambda: bool(stopped))
    assert done == Removal(removed=7, left=13)


def test_i3_what_went_before_a_session_was_stopped_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped: list[bool] = []
    asked(monkeypatch, lambda *_, **__: stopped.append(True) or 4)
    monkeypatch.setattr(module, "requires_sessions", lambda *_: True)
    monkeypatch.setattr(module, "by_session", lambda *_: {name: of("active", 4) for name in "ab"})
    client: Any = None
    assert remove(client, "q", of("active", 8), is_stopped=lambda: bool(stopped)) == Removal(removed=4, left=4)


def test_i3_what_went_before_it_failed_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the entity's sessions, too."""

    def cancel(*_: Any) -> None:
        raise IsthmusError("gone")

    asked(monkeypatch, lambda *_, **__: 10, cancel=cancel)
    client: Any = None
    with pytest.raises(IsthmusError) as caught:
        remove(client, "q", of("active scheduled", 10))
    assert caught.value.__notes__ == ["10 of 20 messages were removed before, as far as the namespace has answered"]

    failures = iter([None, IsthmusError("gone")])

    def sweep(*_: Any, **__: Any) -> int:
        if (failure := next(failures)) is not None:
            failure.attributes["completed"] = 3
            raise failure
        return 4

    asked(monkeypatch, sweep)
    monkeypatch.setattr(module, "requires_sessions", lambda *_: True)
    monkeypatch.setattr(module, "by_session", lambda *_: {name: of("active", 4) for name in "ab"})
    with pytest.raises(IsthmusError) as caught:
        remove(client, "q", of("active", 8))
    assert caught.value.__notes__ == ["7 of 8 messages were removed before, as far as the namespace has answered"]
