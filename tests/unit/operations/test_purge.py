"""What is told of a removal that others disturb."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from isthmus.entities.queue.run import RunSet
from isthmus.errors import SessionLockLostError
from isthmus.operations import purge as module
from isthmus.operations.look import Census
from isthmus.operations.purge import Removal, remove


def test_what_was_removed_of_a_session_that_is_lost_meanwhile_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = RunSet(), RunSet()
    first.add(1, 5)
    second.add(6, 8)
    meant = Census(RunSet(), RunSet(), RunSet())
    meant.active.add(1, 8)
    sessions = {"a": Census(first, RunSet(), RunSet()), "b": Census(second, RunSet(), RunSet())}
    lost = SessionLockLostError("q", "a")
    lost.attributes["completed"] = 2

    def sweep(client: Any, path: str, wanted: RunSet, take: Any, *, session_id: str) -> int:
        if session_id == "a":
            raise lost
        return wanted.count()

    monkeypatch.setattr(module, "sweep", sweep)
    monkeypatch.setattr(module, "Management", lambda *_: SimpleNamespace(close=lambda: None))
    monkeypatch.setattr(module, "_requires_sessions", lambda *_: True)
    monkeypatch.setattr(module, "_by_session", lambda *_: sessions)
    client: Any = None
    assert remove(client, "q", meant) == Removal(removed=5, left=3)
