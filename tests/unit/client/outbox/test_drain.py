from __future__ import annotations

import pytest

from isthmus.client.failure import Failure
from isthmus.client.outbox.drain import Step, decide
from isthmus.client.send.lane import Attempt


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
