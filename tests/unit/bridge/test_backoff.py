"""Delays grow until something has worked."""

from __future__ import annotations

from isthmus.bridge.backoff import Backoff


def test_delays_double_up_to_the_limit() -> None:
    backoff = Backoff(1.0, 5.0)
    assert [backoff.next() for _ in range(5)] == [1.0, 2.0, 4.0, 5.0, 5.0]


def test_i1_after_something_has_worked_they_begin_again() -> None:
    backoff = Backoff(1.0, 5.0)
    backoff.next()
    backoff.reset()
    assert backoff.next() == 1.0
