"""One receiver's use of the list of seen messages."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from isthmus.client.receive import claims as claims_module
from isthmus.client.receive.claims import Claims
from isthmus.client.replicated_receiver import ReplicatedReceiver
from isthmus.client.seen import Bounds, Keys, MemorySeen, SqliteSeen, Verdict

CONNECTION = "Endpoint=sb://localhost;SharedAccessKeyName=k;SharedAccessKey=v"


def test_the_lease_is_renewed_though_a_list_raised_what_it_should_not() -> None:
    renewed = threading.Event()

    class Seen(MemorySeen):
        calls = 0

        def renew(self, owner: str) -> None:
            self.calls += 1
            if self.calls == 1:
                raise LookupError("no such table")
            renewed.set()

    claims = Claims(Seen(Bounds(lease=timedelta(milliseconds=3))), lambda now: None, lambda now: None)
    claims.start()
    assert renewed.wait(10)
    assert claims.errors >= 1
    claims.close(10)


def test_a_call_that_ends_hanging_calls_may_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims_module, "_BEAT_SECONDS", 0.001)
    beats: list[float] = []
    done = threading.Event()

    def beat(now: float) -> None:
        beats.append(now)
        if len(beats) == 1:
            raise ValueError("a socket that is gone")
        done.set()

    claims = Claims(MemorySeen(), lambda now: None, beat)
    claims.start()
    assert done.wait(10)
    claims.close(10)


def test_a_list_of_the_applications_own_stays_open(tmp_path: Path) -> None:
    """Another receiver may use it, which would wait for an answer for ever."""
    seen = SqliteSeen(tmp_path / "seen.db")
    first = ReplicatedReceiver(CONNECTION, CONNECTION, "orders", seen=seen)
    second = ReplicatedReceiver(CONNECTION, CONNECTION, "orders", seen=seen)
    first.close()
    keys: Sequence[Keys] = [(b"one",)]
    assert second._engine._claims.claim(keys) == [Verdict.NEW]
    second.close()
    seen.close()
