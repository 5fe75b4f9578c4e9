"""The copy policy as text."""

from __future__ import annotations

import pytest

from isthmus.errors import InvalidArgumentError
from isthmus.message.copy_policy import CopyPolicy


@pytest.mark.parametrize(
    "policy",
    [
        CopyPolicy(),
        CopyPolicy(ttl_ceiling_ms=120_000),
        CopyPolicy(deadline_ms=600_000, properties={"spilled": 1, "by": "isthmus", "late": True}, removed=("a", "b")),
        CopyPolicy(keeps_dead_letter=True, session_from="partition-key", makes_message_ids=True),
    ],
)
def test_a_policy_survives_as_text(policy: CopyPolicy) -> None:  # I1
    assert CopyPolicy.from_text(policy.to_text()) == policy


def test_the_default_has_no_text() -> None:  # I2
    assert CopyPolicy().to_text() == ""


@pytest.mark.parametrize("text", ["{", "[1]", '{"unknown": 1}'])
def test_a_text_that_is_no_policy_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="copy policy"):
        CopyPolicy.from_text(text)
