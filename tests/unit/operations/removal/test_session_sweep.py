"""The pass over an entity that requires sessions, over scripted passes of single sessions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from isthmus.amqp import section
from isthmus.amqp.types import Int, Long
from isthmus.entities.queue.run import RunSet
from isthmus.errors import ConnectionLostError, IsthmusError, SessionLockLostError
from isthmus.operations.removal import session_sweep as module
from isthmus.operations.removal.session_sweep import sweep_entity
from isthmus.operations.removal.sweep import Taken

CLIENT: Any = None


def message(sequence: int, session_id: str, state: int = 0) -> bytes:
    return section.encode_message(
        b"x",
        annotations={"x-opt-sequence-number": Long(sequence), "x-opt-message-state": Int(state)},
        properties={"group_id": session_id},
    )


class Queue:
    """A queue with sessions: 1, 3 and 5 are of a, 2 and 4 of b; `failures` says what ends the pass over a session, and when."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, failures: dict[str, tuple[int, IsthmusError]] | None = None):
        self.failures = failures or {}
        self.swept: list[tuple[str, list[int]]] = []
        self.there = [message(number, "ab"[number % 2 - 1]) for number in range(1, 6)]
        monkeypatch.setattr(module, "messages", lambda client, path: iter(self.there))
        monkeypatch.setattr(module, "requires_sessions", lambda client, path: True)
        monkeypatch.setattr(module, "sweep", self.sweep)

    def sweep(self, client: Any, path: str, wanted: RunSet, take: Any, *, session_id: str, **_: Any) -> int:
        numbers = [each for first, last in list(wanted) for each in range(first, last + 1)]
        self.swept.append((session_id, numbers))
        after, error = self.failures.get(session_id, (len(numbers), None))
        completed = 0
        for number in numbers[:after]:
            if number in wanted:
                wanted.discard(number, number)
                completed += len(take([Taken(number, b"", message(number, session_id))], lambda: None))
        if error is not None:
            error.attributes["completed"] = completed
            raise error
        return completed


def all_wanted() -> RunSet:
    wanted = RunSet()
    wanted.add(1, 5)
    return wanted


def test_i1_each_session_is_swept_for_its_own_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue(monkeypatch)
    wanted = all_wanted()
    wanted.discard(3, 3)
    assert sweep_entity(CLIENT, "q", wanted, lambda taken, renew: taken) == 4
    assert queue.swept == [("a", [1, 5]), ("b", [2, 4])]
    assert not wanted


def test_i1_a_session_that_somebody_else_has_or_gets_is_reported_and_the_others_follow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue = Queue(monkeypatch, {"a": (1, SessionLockLostError("q", "a"))})
    locked: list[str] = []
    assert sweep_entity(CLIENT, "q", all_wanted(), lambda taken, renew: taken, on_locked=locked.append) == 3
    assert (locked, queue.swept) == (["a"], [("a", [1, 3, 5]), ("b", [2, 4])])


def test_i2_who_takes_the_messages_ends_all_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue(monkeypatch)
    wanted = all_wanted()

    def take(taken: list[Taken], renew: Any) -> list[Taken]:
        wanted.clear()
        return []

    assert sweep_entity(CLIENT, "q", wanted, take) == 0  # type: ignore[arg-type]
    assert queue.swept == [("a", [1, 3, 5])]


def test_no_session_is_begun_after_a_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue(monkeypatch)

    def is_stopped() -> bool:
        return bool(queue.swept)

    assert sweep_entity(CLIENT, "q", all_wanted(), lambda taken, renew: taken, is_stopped=is_stopped) == 3
    assert queue.swept == [("a", [1, 3, 5])]
    assert sweep_entity(CLIENT, "q", all_wanted(), lambda taken, renew: taken, is_stopped=lambda: True) == 0, (
        "not even the look goes on"
    )


def test_a_queue_that_is_lost_shows_what_went_of_all_its_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    Queue(monkeypatch, {"b": (1, ConnectionLostError("gone"))})
    with pytest.raises(ConnectionLostError) as lost:
        sweep_entity(CLIENT, "q", all_wanted(), lambda taken, renew: taken)
    assert lost.value.attributes["completed"] == 4


def test_an_entity_without_sessions_is_swept_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(module, "requires_sessions", lambda client, path: False)
    monkeypatch.setattr(module, "sweep", lambda *arguments, **_: seen.append(arguments) or 5)
    wanted, take = all_wanted(), SimpleNamespace()
    assert sweep_entity(CLIENT, "q", wanted, take) == 5  # type: ignore[arg-type]
    assert seen == [(CLIENT, "q", wanted, take)]
    assert sweep_entity(CLIENT, "q", RunSet(), take) == 0  # type: ignore[arg-type]
    assert len(seen) == 1
