"""Outcomes for a topic's senders."""

from __future__ import annotations

from isthmus.entities.topic.answer import Answers


def test_senders_are_notified_once_and_in_order() -> None:
    """I1."""
    answers, reported = Answers(), []
    for last in (3, 5, 9):
        answers.wait(last, lambda last=last: reported.append(last))  # type: ignore[misc]
    answers.copied(3)
    assert reported == []
    answers.copied(6)
    assert reported == [3, 5]
    answers.copied(4)  # of a commit that ended late
    answers.wait(5, lambda: reported.append("at once"))
    assert reported == [3, 5, "at once"]
    answers.call_all()
    answers.call_all()
    answers.copied(10)
    assert reported == [3, 5, "at once", 9]


def test_a_sender_at_fault_keeps_no_other_callback_from_running() -> None:
    answers, reported = Answers(), []
    answers.wait(1, lambda: 1 // 0)  # type: ignore[arg-type,return-value]
    answers.wait(2, lambda: reported.append(2))
    answers.copied(3)
    answers.wait(5, lambda: 1 // 0)  # type: ignore[arg-type,return-value]
    answers.wait(6, lambda: reported.append(6))
    answers.call_all()
    assert reported == [2, 6]
