from __future__ import annotations

import threading
from typing import Any, cast

import pytest

from isthmus.client.failure import Failure
from isthmus.client.outbox import drain as drain_module
from isthmus.client.outbox.backlog import Batch
from isthmus.client.outbox.drain import Drain, Step, decide
from isthmus.client.send.lane import Attempt, Lane


@pytest.mark.parametrize(
    ("attempt", "count", "step"),
    [
        (Attempt(), 5, Step.GO_ON),
        (Attempt(ValueError(), Failure.REFUSED, was_sent=True), 5, Step.SPLIT),
        (Attempt(ValueError(), Failure.REFUSED, was_sent=True), 1, Step.SET_ASIDE),
        # A link that is refused says nothing about a message.
        (Attempt(ValueError(), Failure.REFUSED, was_sent=False), 1, Step.WAIT),
        *(
            (Attempt(OSError(), failure, was_sent=True), 1, Step.WAIT)
            for failure in Failure
            if failure is not Failure.REFUSED
        ),
    ],
)
def test_only_a_message_that_is_refused_for_itself_leaves_the_outbox_without_being_taken(
    attempt: Attempt, count: int, step: Step
) -> None:
    """I2."""
    assert decide(attempt, count) is step


class FailingSource:
    """Raises what no one expects, then works."""

    def __init__(self, errors: list[Exception]) -> None:
        self.errors = errors
        self.was_acquired = threading.Event()

    def acquire(self) -> bool:
        if self.errors:
            raise self.errors.pop(0)
        self.was_acquired.set()
        return True

    def release(self) -> None:
        pass

    def next_batch(self, limit_bytes: int, limit_count: int) -> Batch | None:
        return None

    def done(self, batch: Batch) -> None:
        pass

    def set_aside(self, batch: Batch, reason: str) -> None:
        pass


class NoLane:
    entity = "orders"
    max_batch_bytes = 0

    def close(self) -> None:
        pass


def test_no_error_of_a_source_ends_the_delivery(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """I4: a driver's own errors, too."""
    monkeypatch.setattr(drain_module, "_AGAIN_SECONDS", 0.001)
    source = FailingSource([RuntimeError("a driver's own"), KeyError("x"), OSError("disk")])
    drain = Drain(source, cast("Lane", cast("Any", NoLane())))
    drain.start()
    assert source.was_acquired.wait(10)
    drain.close()
    assert [record.levelname for record in caplog.records] == ["CRITICAL", "CRITICAL", "ERROR"]


def test_a_message_that_is_refused_for_itself_shows_that_the_namespace_permits_sending(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise nothing more would be accepted, and nothing that is left to try could show the sender otherwise."""
    drain = Drain(FailingSource([]), cast("Lane", cast("Any", NoLane())))
    monkeypatch.setattr(drain._closing, "wait", lambda seconds: False)
    drain._follow(Batch([b"one"]), Attempt(PermissionError(), Failure.FORBIDDEN))
    assert drain.failure is Failure.FORBIDDEN
    drain._follow(Batch([b"one"]), Attempt(ValueError("no session"), Failure.REFUSED, was_sent=True))
    assert drain.failure is None
    assert drain.state().refused == 1


def test_what_the_namespace_took_counts_though_the_source_cannot_note_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(batch: Batch) -> None:
        raise OSError("the database is gone")

    source = FailingSource([])
    monkeypatch.setattr(source, "done", fails)
    drain = Drain(source, cast("Lane", cast("Any", NoLane())))
    with pytest.raises(OSError, match="gone"):
        drain._follow(Batch([b"one", b"two"]), Attempt())
    assert drain.state().delivered == 2


def test_a_reason_that_quotes_what_no_database_keeps_is_kept_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL takes no NUL, and SQLite no half of a surrogate pair: the message would be sent and refused for ever."""
    source, reasons = FailingSource([]), list[str]()
    monkeypatch.setattr(source, "set_aside", lambda batch, reason: reasons.append(reason))
    drain = Drain(source, cast("Lane", cast("Any", NoLane())))
    drain._follow(Batch([b"one"]), Attempt(ValueError("no session 'a\0b\ud800'"), Failure.REFUSED, was_sent=True))
    assert reasons == ["ValueError: no session 'a\\x00b\\ud800'"]


def test_what_a_process_was_forbidden_is_forgotten_when_another_may_deliver(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one empties the outbox, and this one would learn nothing more."""
    monkeypatch.setattr(drain_module, "_AGAIN_SECONDS", 0.001)
    source = FailingSource([OSError("disk")])
    drain = Drain(source, cast("Lane", cast("Any", NoLane())))
    drain._failure = Failure.FORBIDDEN
    drain.start()
    assert source.was_acquired.wait(10)
    assert drain.failure is None
    drain.close()


def test_after_an_unknown_outcome_smaller_batches_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that is lost each time before it has carried a batch would never deliver anything."""
    drain = Drain(FailingSource([]), cast("Lane", cast("Any", NoLane())))
    monkeypatch.setattr(drain._closing, "wait", lambda seconds: False)
    lost = Attempt(OSError("cut"), Failure.GONE, is_definite=False, was_sent=True)
    drain._follow(Batch([b""] * 400), lost)
    assert drain._limit_count == 200
    drain._follow(Batch([b""]), lost)
    assert drain._limit_count == 1
    drain._follow(Batch([b""]), Attempt())
    assert drain._limit_count == 2
    drain._follow(Batch([b""] * 2), Attempt(OSError("refused"), Failure.GONE))  # nothing was sent
    assert drain._limit_count == 2
