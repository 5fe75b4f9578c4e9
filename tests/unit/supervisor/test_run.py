"""What a run does before it starts anything."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from isthmus.supervisor import run as run_module
from isthmus.supervisor.claim import Holder
from isthmus.supervisor.run import TaskClaimedError, _decide

KEY = ("flights", "ewr")


class Claims:
    """Shows one view of the claims after the other; the last stays."""

    def __init__(self, *views: dict[tuple[str, str], Holder | None]) -> None:
        self.views = list(views)

    def elsewhere(self) -> dict[tuple[str, str], Holder | None]:
        return self.views.pop(0) if len(self.views) > 1 else self.views[0]

    def decided(self) -> bool:
        return True


def decide(*views: dict[tuple[str, str], Holder | None]) -> None:
    claims: Any = Claims(*views)
    _decide(claims, threading.Event())


def test_i2_a_claim_without_a_name_is_waited_for_and_refused_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever locked it did not come to say who it is: a run that begins, or one whose connection broke while it took it."""
    decide({KEY: None}, {KEY: None}, {})
    monkeypatch.setattr(run_module, "CLAIM_LOCK_MS", 100)
    monkeypatch.setattr(run_module, "DECIDE_SECONDS", 0.2)
    with pytest.raises(TaskClaimedError, match="another process"):
        decide({KEY: None})
