"""The results of messages when answers are missing."""

from __future__ import annotations

import pickle
from collections import deque
from typing import Any

import pytest

from isthmus.errors import ConnectionLostError, IsthmusError, OutcomeUnknownError, QuotaExceededError
from isthmus.operations import deliver as module
from isthmus.operations.deliver import UnconfirmedError, deliver
from isthmus.transport.sender import Outcome


class Link:
    """A client and its sender, which accept everything; each wait brings an answer, and in the end the loss."""

    path = "q"

    def __init__(self, *answers: Outcome, is_silent: bool = False) -> None:
        self.now = 0.0
        self.sent = 40  # of earlier calls
        self.sendable = 1000
        self.error: IsthmusError | None = None
        self.outcomes: deque[Outcome] = deque()
        self.is_silent = is_silent
        self._answers = deque(answers)

    def send(self, payloads: list[bytes]) -> None:
        self.sent += len(payloads)

    def service(self) -> None: ...

    def wait(self, seconds: float) -> None:
        self.now += 10.0
        if self._answers:
            self.outcomes.append(self._answers.popleft())
        elif not self.is_silent:
            self.error = ConnectionLostError("gone")


@pytest.mark.parametrize("is_silent", [False, True])
def test_i2_the_answers_that_came_are_reported_with_the_error(is_silent: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    full = QuotaExceededError("full")
    link: Any = Link(Outcome(40, 41, None), Outcome(44, 44, full), is_silent=is_silent)
    monkeypatch.setattr(module.time, "monotonic", lambda: link.now)
    with pytest.raises(UnconfirmedError, match="no answer arrived" if is_silent else "3 messages were not") as lost:
        deliver(link, link, [b""] * 6)
    error = lost.value
    assert isinstance(error, OutcomeUnknownError)
    assert list(error.results) == [None, None, error, error, full, error]
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
