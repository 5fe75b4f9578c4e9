"""The results of messages when answers are missing."""

from __future__ import annotations

import pickle
from collections import deque
from contextlib import nullcontext
from typing import Any

import pytest

from isthmus.errors import (
    ConnectionLostError,
    IsthmusError,
    LockLostError,
    MessageTooLargeError,
    OperationTimeoutError,
    OutcomeUnknownError,
    QuotaExceededError,
)
from isthmus.operations import deliver as module
from isthmus.operations.deliver import UnconfirmedError, deliver
from isthmus.transport.sender import Outcome


class Link:
    """A client and its sender, which take everything; each wait lasts ten seconds, and brings bytes to the namespace if some are left, else an answer, and at
    last the loss.
    """

    path = "q"
    max_message_bytes = 0

    def __init__(self, *answers: Outcome, is_silent: bool = False, bytes_per_wait: int = 0) -> None:
        self.now = 0.0
        self.queued_bytes = self.arrived_bytes = 0
        self.waits_before: list[int] = []  # of each message, how many waits there were before it
        self.waits = 0
        self._bytes_per_wait = bytes_per_wait
        self.sent = 40  # of earlier calls
        self.sendable = 1000
        self.error: IsthmusError | None = None
        self.outcomes: deque[Outcome] = deque()
        self.is_silent = is_silent
        self._answers = deque(answers)

    def send(self, payloads: list[bytes]) -> None:
        self.sent += len(payloads)
        self.waits_before += [self.waits] * len(payloads)
        self.queued_bytes += sum(map(len, payloads))
        if not self._bytes_per_wait:
            self.arrived_bytes = self.queued_bytes

    def service(self) -> None: ...

    def wait(self, seconds: float) -> None:
        self.now += 10.0
        self.waits += 1
        if self.arrived_bytes < self.queued_bytes:
            self.arrived_bytes = min(self.queued_bytes, self.arrived_bytes + self._bytes_per_wait)
        elif self._answers:
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


def test_i3_what_a_slow_network_still_carries_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given up and sent again, it would be there twice."""
    link: Any = Link(Outcome(40, 40, None), bytes_per_wait=200_000)
    monkeypatch.setattr(module.time, "monotonic", lambda: link.now)
    assert deliver(link, link, [bytes(2_000_000)]) == [None]
    assert link.now > 100


def test_i3_on_a_slow_network_few_messages_are_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    """The renewal of a lock on the same connection waits behind them."""
    link: Any = Link(Outcome(40, 41, None), Outcome(42, 43, None), bytes_per_wait=200_000)
    monkeypatch.setattr(module.time, "monotonic", lambda: link.now)
    assert deliver(link, link, [bytes(200_000)] * 4) == [None] * 4
    assert link.waits_before == sorted(set(link.waits_before)), "each of them behind the one before"


def test_a_fault_of_what_is_done_meanwhile_hides_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a renewal without an answer: what was accepted must still leave its queue."""
    late = OperationTimeoutError("no answer")

    def renew() -> None:
        if link.waits == 2:
            raise late

    link: Any = Link(Outcome(40, 40, None), is_silent=True)
    monkeypatch.setattr(module.time, "monotonic", lambda: link.now)
    with pytest.raises(UnconfirmedError, match="no answer") as lost:
        deliver(link, link, [b"", b""], renew)
    assert list(lost.value.results) == [None, lost.value]


def test_a_lost_session_is_told_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    def renew() -> None:
        raise LockLostError("gone")

    link: Any = Link(is_silent=True)
    with pytest.raises(LockLostError):
        deliver(link, link, [b""], renew)


@pytest.mark.parametrize("is_lost", [False, True])
def test_i4_a_message_over_the_limit_is_refused_unsent_and_the_others_are_sent(
    is_lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A namespace would end the link, and none behind it could ever be sent."""
    link: Any = Link(Outcome(40, 40 if is_lost else 41, None))
    link.max_message_bytes = 10
    monkeypatch.setattr(module.time, "monotonic", lambda: link.now)
    with pytest.raises(UnconfirmedError) if is_lost else nullcontext() as lost:
        results: Any = deliver(link, link, [b"first", bytes(11), b"last"])
    if lost is not None:
        assert lost.value.sent == 3
        results = lost.value.results
    assert [each if each is None else type(each) for each in results] == [
        None,
        MessageTooLargeError,
        UnconfirmedError if is_lost else None,
    ]
    assert (str(results[1]), link.sent) == ("The message has 11 bytes; the limit is 10 bytes.", 42)
