"""Dead letters sent again, against a scripted pass and target."""

from __future__ import annotations

from typing import Any

import pytest

from isthmus.amqp import section
from isthmus.entities.queue.run import RunSet
from isthmus.operations import resubmit as module
from isthmus.operations.message import make_change
from isthmus.operations.resubmit import resubmit
from isthmus.operations.sweep import Taken

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
        """Nothing is held."""


def sweep_of(payloads: list[bytes]) -> Any:
    def sweep(client: Any, path: str, wanted: RunSet, take: Any) -> int:
        wanted.clear()
        return len(take([Taken(number, b"", each) for number, each in enumerate(payloads)], lambda: None))

    return sweep


def test_i2_an_action_that_cannot_read_a_message_leaves_it_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    client: Any = None
    monkeypatch.setattr(module, "Sender", lambda *_: Target())
    monkeypatch.setattr(module, "deliver", lambda client, sender, payloads, renew: [None] * len(payloads))
    monkeypatch.setattr(module, "sweep", sweep_of([ODD, section.encode_message(b"y")]))
    done = resubmit(client, "q/$DeadLetterQueue", "q", numbers(2), make_change("SET b = a"))
    assert (done.moved, done.refused, done.left) == (1, 1, 0)
    assert "cannot be read" in done.first_refusal
