"""isthmus.broker.link.verdict."""

from __future__ import annotations

from typing import Any

import pytest

from isthmus.amqp import Error
from isthmus.amqp.performative import Accepted, Modified, Received, Rejected, Released, Source
from isthmus.amqp.types import Symbol
from isthmus.broker.link.verdict import default_verdict, verdict_of

TOKENS = [b"t"]


class Queue:
    """Notes what is asked of it."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments, **options: self.asked.append((name, arguments, options))


def asked(state: Any) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    queue: Any = Queue()
    verdict = verdict_of(state, queue)
    assert verdict is not None
    verdict.settle(TOKENS, None, None)
    [found] = queue.asked
    return found  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("state", "call", "echo", "at_once"),
    [
        (Accepted(), "complete", Accepted(), False),
        (Released(), "release", Released(), True),
        (Modified(True, False), "abandon", Modified(True, False), False),
        (Modified(True, True), "defer", Modified(True, True), False),
        (Rejected(), "dead_letter", Rejected(), False),
    ],
)
def test_each_outcome_has_its_call_and_its_answer(state: Any, call: str, echo: Any, at_once: bool) -> None:
    assert asked(state)[0] == call
    verdict = verdict_of(state, Queue())  # type: ignore[arg-type]
    assert verdict is not None
    assert (verdict.echo, verdict.at_once) == (echo, at_once)


@pytest.mark.parametrize("state", [None, Received(1, 0), object()])
def test_what_is_no_outcome_asks_for_nothing_i1(state: Any) -> None:
    assert verdict_of(state, Queue()) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("source", "echo"),
    [
        (Source(default_outcome=Modified(True, False)), Modified(True, False)),
        (Source(default_outcome=Received(1, 0)), Released()),
        (Source(), Released()),
        (None, Released()),
    ],
)
def test_what_is_settled_without_an_outcome_has_the_default_one_i2(source: Any, echo: Any) -> None:
    assert default_verdict(source, Queue()).echo == echo  # type: ignore[arg-type]


def test_the_reason_of_a_rejection_is_its_own_or_its_condition() -> None:
    info = {"DeadLetterReason": "Bad", "DeadLetterErrorDescription": "it is", "more": 1}
    reported = Rejected(Error(Symbol("com.microsoft:dead-letter"), None, info))
    assert asked(reported)[2] == {
        "reason": "Bad", "description": "it is", "properties": {"more": 1}, "on_durable": None, "on_failed": None,
    }  # fmt: skip
    plain = asked(Rejected(Error(Symbol("amqp:decode-error"), "no message")))[2]
    assert (plain["reason"], plain["description"]) == ("amqp:decode-error", "no message")
