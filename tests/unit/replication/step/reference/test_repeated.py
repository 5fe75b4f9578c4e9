"""Reference data that is read again in the background: messages wait only for the first reading."""

from __future__ import annotations

import logging
import threading

import pytest

from isthmus.replication.step.reference.repeated import Repeated

EVERY, LONG = 60.0, 10.0


class Loader:
    """Gives numbers from 1, or raises what it is set to; waits while it is stopped."""

    def __init__(self) -> None:
        self.now = 0.0
        self.made = 0
        self.error: Exception | None = None
        self.goes_on = threading.Event()
        self.goes_on.set()

    def __call__(self) -> int:
        assert self.goes_on.wait(LONG)
        self.made += 1
        if self.error is not None:
            raise self.error
        return self.made

    def repeated(self, first_seconds: float = LONG) -> Repeated[int]:
        return Repeated(self, EVERY, "the airports", lambda: self.now, first_seconds)


def ended(data: Repeated[int]) -> None:
    data._thread.join(LONG)
    assert not data._thread.is_alive()


def test_it_is_read_again_after_so_long_and_nothing_waits_for_it() -> None:
    loader = Loader()
    data = loader.repeated()
    assert data.get() == 1
    loader.now = EVERY - 1
    assert (data.get(), loader.made) == (1, 1)
    loader.goes_on.clear()
    loader.now = EVERY
    assert data.get() == 1
    loader.now = 3 * EVERY
    assert data.get() == 1  # I2: the reading before has not ended
    loader.goes_on.set()
    ended(data)
    assert data.get() == 2  # and it is due again
    ended(data)
    assert (data.get(), loader.made) == (3, 3)


def test_what_cannot_be_read_again_is_reported_once_and_stays_i1(caplog: pytest.LogCaptureFixture) -> None:
    loader = Loader()
    data = loader.repeated()
    with caplog.at_level(logging.WARNING):
        for error in (OSError("away"), OSError("still away"), None, OSError("away again")):
            loader.error = error
            loader.now += EVERY
            data.get()
            ended(data)
            data.get()
    assert data.get() == 4
    reported = [each.getMessage() for each in caplog.records]
    assert reported == [
        f"the airports cannot be read again; the previous data stays in use ({text})" for text in ("away", "away again")
    ]


def test_the_first_reading_is_waited_for_and_its_error_is_reported() -> None:
    loader = Loader()
    loader.error = ValueError("no such table")
    with pytest.raises(ValueError, match="no such table"):
        loader.repeated()
    loader.goes_on.clear()
    with pytest.raises(TimeoutError, match=r"the airports was not read within 0\.01 s"):
        loader.repeated(0.01)
    loader.goes_on.set()
