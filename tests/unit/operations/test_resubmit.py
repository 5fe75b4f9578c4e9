"""Dead letters sent again, against a scripted pass and target."""

from __future__ import annotations

from typing import Any

import pytest

from isthmus.amqp import section
from isthmus.entities.queue.run import RunSet
from isthmus.errors import IsthmusError, QuotaExceededError, ServerBusyError
from isthmus.message.name import ORIGIN, RESENT
from isthmus.operations import resubmit as module
from isthmus.operations.deliver import UnconfirmedError
from isthmus.operations.message import make_change
from isthmus.operations.removal.sweep import Taken
from isthmus.operations.resubmit import resubmit

ODD = b"\0St\xc1\x07\x02\xa1\x01a\xa1\x01\xff" + b"\0Su\xa0\x01x"  # the text of `a` is no UTF-8


def numbers(count: int) -> RunSet:
    found = RunSet()
    found.add(1, count)
    return found


class Target:
    """A sender that is ready."""

    def wait_ready(self) -> Target:
        return self

    def close(self) -> None:
        """There is no connection to close."""


def sweep_of(payloads: list[bytes]) -> Any:
    def sweep(client: Any, path: str, wanted: RunSet, take: Any, **_: Any) -> int:
        wanted.clear()
        return len(take([Taken(number, b"", each) for number, each in enumerate(payloads)], lambda: None))

    return sweep


def test_i2_an_action_that_cannot_read_a_message_leaves_it_and_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    client: Any = None
    monkeypatch.setattr(module, "Sender", lambda *_: Target())
    monkeypatch.setattr(module, "deliver", lambda client, sender, payloads, renew: [None] * len(payloads))
    monkeypatch.setattr(module, "sweep", sweep_of([ODD, section.encode_message(b"y")]))
    done = resubmit(client, "q/$DeadLetterQueue", "q", numbers(2), make_change("SET b = a"))
    assert (done.moved, done.refused, done.left) == (1, 1, 0)
    assert "cannot be read" in done.first_refusal


def test_after_a_stop_nothing_more_is_sent_and_what_was_sent_is_removed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client: Any = None
    monkeypatch.setattr(module, "Sender", lambda *_: Target())
    monkeypatch.setattr(module, "deliver", lambda client, sender, payloads, renew: [None] * len(payloads))
    monkeypatch.setattr(module, "sweep", sweep_of([section.encode_message(b"y")] * 350))
    answers = iter((False, False, True))
    done = resubmit(client, "q/$DeadLetterQueue", "q", numbers(350), make_change(""), is_stopped=lambda: next(answers))
    assert (done.moved, done.refused, done.left) == (200, 0, 150)


def test_i1_what_a_lost_target_has_acknowledged_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise it would be sent once more by the next call, though its answer has come."""
    calls: list[int] = []

    def deliver(client: Any, sender: Any, payloads: list[bytes], renew: Any) -> list[IsthmusError | None]:
        calls.append(len(payloads))
        if len(calls) < 2:
            return [None] * len(payloads)
        error = UnconfirmedError("gone")
        error.results = [None, error, *[QuotaExceededError("full")] * (len(payloads) - 2)]
        raise error

    client: Any = None
    monkeypatch.setattr(module, "Sender", lambda *_: Target())
    monkeypatch.setattr(module, "deliver", deliver)
    monkeypatch.setattr(module, "sweep", sweep_of([section.encode_message(b"y")] * 350))
    with pytest.raises(UnconfirmedError, match="gone") as lost:
        resubmit(client, "q/$DeadLetterQueue", "q", numbers(350), make_change(""))
    assert calls == [100, 100]
    assert lost.value.__notes__ == [
        "101 of 350 messages were sent and removed before, as far as the namespace has answered"
    ]


def test_i1_what_was_acknowledged_before_a_renewal_failed_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy namespace refuses a renewal, and takes settlements all the same."""
    completed: list[int] = []

    def renew() -> None:
        raise ServerBusyError("busy")

    def sweep(client: Any, path: str, wanted: RunSet, take: Any, **_: Any) -> int:
        taken = [Taken(number, b"", section.encode_message(b"y")) for number in range(150)]
        completed.extend(each.delivery_id for each in take(taken, renew))
        assert not wanted, "the pass ends"
        return len(completed)

    client: Any = None
    monkeypatch.setattr(module, "Sender", lambda *_: Target())
    monkeypatch.setattr(module, "deliver", lambda client, sender, payloads, renew: [None] * len(payloads))
    monkeypatch.setattr(module, "sweep", sweep)
    with pytest.raises(ServerBusyError) as busy:
        resubmit(client, "q/$DeadLetterQueue", "q", numbers(150), make_change(""))
    assert completed == list(range(100))
    assert busy.value.__notes__ == [
        "100 of 150 messages were sent and removed before, as far as the namespace has answered"
    ]


@pytest.mark.parametrize(("is_copy", "resent"), [(False, "0"), (True, None)])
def test_i3_a_body_that_names_provenance_is_none(
    monkeypatch: pytest.MonkeyPatch, is_copy: bool, resent: str | None
) -> None:
    """Without the number `verify` called the message lost."""
    sent: list[bytes] = []

    def deliver(client: Any, sender: Any, payloads: list[bytes], renew: Any) -> list[None]:
        sent.extend(payloads)
        return [None] * len(payloads)

    client: Any = None
    monkeypatch.setattr(module, "Sender", lambda *_: Target())
    monkeypatch.setattr(module, "deliver", deliver)
    properties = {ORIGIN: "a/t"} if is_copy else {"n": 1}
    message = section.encode_message(b'{"repl-origin": "a/t"}', application_properties=properties)
    monkeypatch.setattr(module, "sweep", sweep_of([message]))
    resubmit(client, "t/subscriptions/isthmus.x/$DeadLetterQueue", "t", numbers(1), make_change(""))
    found = section.decode_map(sent[0], section.locate(sent[0]).application_properties)
    assert found.get(RESENT) == resent
