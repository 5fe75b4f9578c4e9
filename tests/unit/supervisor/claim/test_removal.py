"""Claims of tasks whose entities are deleted."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from isthmus.supervisor.claim import removal as module
from isthmus.supervisor.claim.claim import Holder, TaskClaimedError
from isthmus.supervisor.claim.removal import ClaimNotTakenError, held_claims
from isthmus.supervisor.supervisor import ClaimState, ClaimView

KEY = ("flights", "ewr")


def ended() -> Holder:
    """A run of this machine that was killed."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return Holder(socket.gethostname(), process.pid, 1.0, "10:00")


class Keeper:
    """A claim that another run has for some looks."""

    looks = 3
    holder: Holder | None = None

    def __init__(self, *_: object) -> None:
        self.looked = 0

    def start(self) -> Keeper:
        return self

    def close(self) -> None:
        pass

    def decided(self) -> bool:
        return True

    def held_by_others(self) -> dict[tuple[str, str], Holder | None]:
        self.looked += 1
        return {KEY: self.holder} if self.looked <= self.looks else {}

    def view(self, task: str, alias: str) -> ClaimView:
        return ClaimView(ClaimState.HELD if self.looked > self.looks else ClaimState.ELSEWHERE)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Continues during the wait."""
    found = [0.0]

    def sleep(seconds: float) -> None:
        found[0] += seconds

    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: found[0], sleep=sleep))
    monkeypatch.setattr(module, "ClaimKeeper", Keeper)
    return found


def taken() -> bool:
    federation: Any = None
    with held_claims(federation, [KEY], connect=lambda endpoint: None):  # type: ignore[arg-type,return-value]
        return True


@pytest.mark.parametrize("holder", [ended(), None])
def test_a_claim_of_a_process_that_was_killed_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, now: list[float], holder: Holder | None
) -> None:
    """As of a removal that was killed, and is run again."""
    monkeypatch.setattr(Keeper, "holder", holder)
    assert taken()


def test_a_claim_that_does_not_expire_is_reported(monkeypatch: pytest.MonkeyPatch, now: list[float]) -> None:
    monkeypatch.setattr(Keeper, "holder", ended())
    monkeypatch.setattr(Keeper, "looks", 1 << 30)
    with pytest.raises(TaskClaimedError):
        taken()
    assert now[0] >= module.LAPSE_SECONDS


def test_a_namespace_that_does_not_decide_is_not_waited_for_so_long(
    monkeypatch: pytest.MonkeyPatch, now: list[float]
) -> None:
    monkeypatch.setattr(Keeper, "decided", lambda _: False)
    monkeypatch.setattr(Keeper, "looks", 0)
    monkeypatch.setattr(Keeper, "view", lambda *_: ClaimView(ClaimState.PENDING))
    with pytest.raises(ClaimNotTakenError):
        taken()
    assert module.DECIDE_SECONDS <= now[0] < module.DECIDE_SECONDS + 1


def test_a_run_that_is_alive_is_reported_at_once(monkeypatch: pytest.MonkeyPatch, now: list[float]) -> None:
    monkeypatch.setattr(Keeper, "holder", Holder("another machine", os.getpid(), 1.0, "10:00"))
    with pytest.raises(TaskClaimedError, match="another machine"):
        taken()
    assert now[0] == 0.0
