"""Which failed browse requests are repeated, and when."""

from __future__ import annotations

import random

import pytest

from isthmus.errors import (
    ConnectionLostError,
    EntityNotFoundError,
    IsthmusError,
    OperationTimeoutError,
    ServerBusyError,
    UnauthorizedError,
)
from isthmus.replication.browse_retry import LIMIT_SECONDS, BrowseRetry

LOST = ConnectionLostError("the peer closed the connection")


def test_i1_a_connection_that_was_closed_while_idle_is_replaced_at_once_and_only_once() -> None:
    retry = BrowseRetry()
    assert retry.delay_seconds(LOST, was_open=True, was_reached=True, now=10.0) == 0.0
    assert retry.delay_seconds(LOST, was_open=True, was_reached=True, now=10.0) is None


def test_i1_a_new_connection_that_fails_is_no_idle_one() -> None:
    assert BrowseRetry().delay_seconds(LOST, was_open=False, was_reached=True, now=10.0) is None


@pytest.mark.parametrize("error", [LOST, OperationTimeoutError("no answer"), ServerBusyError("come back later")])
def test_i2_a_namespace_that_was_reached_is_tried_again_until_the_patience_ends(error: IsthmusError) -> None:
    retry = BrowseRetry(30.0, random.Random(1))
    now, delays = 100.0, []
    while (delay := retry.delay_seconds(error, was_open=False, was_reached=True, now=now)) is not None:
        delays.append(delay)
        now += delay
    assert now == pytest.approx(130.0)
    assert delays[0] < 1.0
    assert max(delays) <= LIMIT_SECONDS


def test_i2_a_namespace_that_was_never_reached_is_not_tried_again() -> None:
    assert BrowseRetry(30.0).delay_seconds(LOST, was_open=False, was_reached=False, now=0.0) is None


@pytest.mark.parametrize("error", [EntityNotFoundError("flights"), UnauthorizedError("'flights': refused")])
def test_i3_what_does_not_pass_is_not_repeated(error: IsthmusError) -> None:
    assert BrowseRetry(30.0).delay_seconds(error, was_open=True, was_reached=True, now=0.0) is None
