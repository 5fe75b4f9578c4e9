"""One callback for the commits of several stores."""

from __future__ import annotations

import pytest

from isthmus.entities.fragment.join import Join


@pytest.mark.parametrize("outcomes", ["ddd", "dfd", "ffd", "ddf"])
def test_the_last_to_end_answers_once(outcomes: str) -> None:
    """I1."""
    answers: list[object] = []
    join = Join(len(outcomes), lambda: answers.append("durable"), answers.append)
    errors = [OSError(str(number)) for number in range(len(outcomes))]
    for outcome, error in zip(outcomes, errors, strict=True):
        assert answers == []
        if outcome == "d":
            join.durable()
        else:
            join.failed(error)
    assert answers == [errors[outcomes.index("f")] if "f" in outcomes else "durable"]


@pytest.mark.parametrize("outcome", ["durable", "failed"])
def test_it_need_not_be_waited_for(outcome: str) -> None:
    calls: list[object] = []
    done, refused = (None, calls.append) if outcome == "durable" else (lambda: calls.append("durable"), None)
    join = Join(1, done, refused)
    if outcome == "durable":
        join.durable()
    else:
        join.failed(OSError())
    assert calls == []
