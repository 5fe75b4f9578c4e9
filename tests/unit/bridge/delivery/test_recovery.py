"""isthmus.bridge.delivery.recovery. See test_delivery for its rounds."""

from __future__ import annotations

import pytest

from isthmus.bridge.delivery.recovery import Recovery
from isthmus.bridge.refusal import Refusal, RefusalKind

FULL = Refusal(RefusalKind.BLOCKED, "full", "it is full")


@pytest.fixture
def recovery() -> Recovery:
    return Recovery(lambda attempt: 2.0**attempt)


def test_i1_a_round_waits_longer_than_the_one_before_until_something_is_accepted(recovery: Recovery) -> None:
    waits = []
    for _ in range(3):
        recovery.begin(0.0, FULL)
        recovery.settled(0.0)
        waits.append(recovery.retry_at)
    assert waits == [1.0, 2.0, 4.0]
    recovery.took(0.0)
    recovery.begin(0.0, FULL)
    recovery.settled(0.0)
    assert recovery.retry_at == 1.0


def test_i2_it_is_overdue_where_the_target_has_taken_nothing_for_so_long(recovery: Recovery) -> None:
    recovery.begin(10.0, FULL)
    assert recovery.overdue(40.0, 30.0, is_awaited=False) is None
    assert recovery.overdue(40.1, 30.0, is_awaited=False) is FULL
    recovery.took(20.0)
    assert recovery.overdue(40.1, 30.0, is_awaited=False) is None


def test_i2_what_still_arrives_at_the_target_counts_as_taken(recovery: Recovery) -> None:
    recovery.begin(10.0, FULL)
    recovery.progressed(35.0)
    assert recovery.overdue(65.0, 30.0, is_awaited=True) is None
    assert recovery.overdue(65.1, 30.0, is_awaited=True) is FULL


def test_i3_it_is_not_overdue_while_an_outcome_may_still_come(recovery: Recovery) -> None:
    recovery.begin(10.0, FULL)
    recovery.sent_at = 39.0
    assert recovery.overdue(44.0, 30.0, is_awaited=True) is None
    assert recovery.deadline(40.1, 30.0, is_awaited=True) == 44.0
    assert recovery.overdue(44.1, 30.0, is_awaited=True) is FULL
    assert recovery.overdue(40.1, 30.0, is_awaited=False) is FULL


def test_what_is_not_known_is_reported_where_no_outcome_came(recovery: Recovery) -> None:
    recovery.begin(0.0, None)
    trouble = recovery.overdue(31.0, 30.0, is_awaited=True)
    assert trouble is not None
    assert (trouble.kind, str(trouble)) == (RefusalKind.UNKNOWN, "no outcome came")


def test_its_deadline_is_the_next_attempt_or_the_end(recovery: Recovery) -> None:
    recovery.begin(0.0, FULL)
    assert recovery.deadline(0.0, 30.0, is_awaited=False) == 30.0, "outcomes are waited for"
    recovery.settled(0.0)
    assert recovery.deadline(0.0, 30.0, is_awaited=False) == 1.0
    assert recovery.deadline(1.0, 30.0, is_awaited=False) == 30.0
