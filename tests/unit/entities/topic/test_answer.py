"""Outcomes for a topic's senders."""

from __future__ import annotations

from isthmus.entities.topic.answer import Answers


def test_senders_are_told_once_and_in_order() -> None:
    """I1."""
    answers, told = Answers(), []
    for last in (3, 5, 9):
        answers.wait(last, lambda last=last: told.append(last))  # type: ignore[misc]
    answers.copied(3)
    assert told == []
    answers.copied(6)
    assert told == [3, 5]
    answers.copied(4)  # of a commit that ended late
    answers.wait(5, lambda: told.append("at once"))
    assert told == [3, 5, "at once"]
    answers.call_all()
    answers.call_all()
    answers.copied(10)
    assert told == [3, 5, "at once", 9]


def test_a_sender_at_fault_keeps_no_other_one_from_being_told() -> None:
    answers, told = Answers(), []
    answers.wait(1, lambda: 1 // 0)  # type: ignore[arg-type,return-value]
    answers.wait(2, lambda: told.append(2))
    answers.copied(3)
    answers.wait(5, lambda: 1 // 0)  # type: ignore[arg-type,return-value]
    answers.wait(6, lambda: told.append(6))
    answers.call_all()
    assert told == [2, 6]
