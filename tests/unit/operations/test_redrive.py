"""Which messages that were set aside are sent unasked."""

from __future__ import annotations

import pytest

from isthmus.operations.redrive import Choice


@pytest.mark.parametrize("reason", ["RefusedByTarget", "MessageTooLarge", "MaxDeliveryCountExceeded", "StepFailed"])
def test_i2_what_may_pass_when_tried_again_is_sent_unasked(reason: str) -> None:
    assert Choice().takes(reason, is_parking=False)


@pytest.mark.parametrize(
    "reason",
    ["KilledItsWorker", "Visited", "HopBudgetUsedUp", "DeadlinePassed", "TTLExpiredException", "CardDeclined", ""],
)
def test_i2_everything_else_only_where_it_is_named(reason: str) -> None:
    assert not Choice().takes(reason, is_parking=False)
    assert Choice().takes(reason, is_parking=True)
    assert Choice(reasons=frozenset({reason.upper()})).takes(reason, is_parking=False)


def test_named_reasons_leave_out_all_others() -> None:
    choice = Choice(reasons=frozenset({"KilledItsWorker"}), expired=True)
    assert not choice.takes("RefusedByTarget", is_parking=False)
    assert not choice.takes("RefusedByTarget", is_parking=True)


def test_expired_ones_are_meant_where_that_is_asked() -> None:
    assert Choice(expired=True).takes("TTLExpiredException", is_parking=False)
    assert Choice(expired=True).takes("RefusedByTarget", is_parking=False)
