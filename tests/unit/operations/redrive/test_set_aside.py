"""The messages that are selected by default among those set aside, and the counts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from isthmus.amqp import section
from isthmus.amqp.types import Int, Long
from isthmus.message import name as names
from isthmus.operations.redrive import set_aside
from isthmus.operations.redrive.set_aside import Choice, count_queue


@pytest.mark.parametrize(
    "reason",
    [
        "RefusedByTarget",
        "MessageTooLarge",
        "MaxDeliveryCountExceeded",
        "StepFailed",
        "QuotaExceeded",
        "MessagingEntityDisabled",
    ],
)
def test_i1_what_may_pass_when_tried_again_is_sent_unasked(reason: str) -> None:
    assert Choice().takes(reason, takes_all=False)


@pytest.mark.parametrize(
    "reason",
    ["KilledItsWorker", "Visited", "HopBudgetUsedUp", "DeadlinePassed", "TTLExpiredException", "CardDeclined", ""],
)
def test_i1_everything_else_only_where_it_is_named(reason: str) -> None:
    assert not Choice().takes(reason, takes_all=False)
    assert Choice().takes(reason, takes_all=True)
    assert Choice(reasons=frozenset({reason.upper()})).takes(reason, takes_all=False)


def test_named_reasons_leave_out_all_others() -> None:
    choice = Choice(reasons=frozenset({"KilledItsWorker"}), expired=True)
    assert not choice.takes("RefusedByTarget", takes_all=False)
    assert not choice.takes("RefusedByTarget", takes_all=True)


def test_expired_ones_are_meant_where_that_is_asked() -> None:
    assert Choice(expired=True).takes("TTLExpiredException", takes_all=False)
    assert Choice(expired=True).takes("RefusedByTarget", takes_all=False)


def test_a_dead_letter_whose_properties_cannot_be_read_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no reason that could be read: it is counted, and sent only where everything is meant."""
    reason = section.encode_message(b"x", application_properties={"DeadLetterReason": "RefusedByTarget"})
    odd = b"\0St\xc1\x03\x02\xa1\x7f" + b"\0Su\xa0\x01x"
    monkeypatch.setattr(set_aside, "messages", lambda client, path: iter([odd, reason]))
    each: Any = SimpleNamespace(source=SimpleNamespace(entity="q"), is_parking=False, is_diverted=False)
    client: Any = None
    found = count_queue(client, each, Choice())
    assert (dict(found.reasons), found.chosen.count()) == ({"": 1, "RefusedByTarget": 1}, 1)


@pytest.mark.parametrize("count", [0, 2])
def test_i2_what_is_deferred_or_scheduled_is_counted_and_not_meant(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """It is not delivered: chosen, it would be left each time, and use up the count."""
    there = [
        section.encode_message(
            b"x",
            annotations={"x-opt-sequence-number": Long(number), "x-opt-message-state": Int(state)},
            application_properties={"DeadLetterReason": "RefusedByTarget"},
        )
        for number, state in enumerate((1, 1, 2, 0, 0), start=1)
    ]
    monkeypatch.setattr(set_aside, "messages", lambda client, path: iter(there))
    each: Any = SimpleNamespace(source=SimpleNamespace(entity="q"), is_parking=False, is_diverted=False)
    client: Any = None
    found = count_queue(client, each, Choice(count=count))
    assert (list(found.chosen), found.deferred, found.scheduled) == ([(4, 5)], 2, 1)
    assert dict(found.reasons) == {"RefusedByTarget": 5}


def test_diverted_messages_that_were_dead_lettered_there_are_counted_and_not_meant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hop = ("ewr/flights", "ewr-1", "7", "7", "2026-01-01T00:00:00.000Z")
    own = dict(zip(names.HOP_PROPERTIES, hop, strict=True)) | {names.WHY_ROUTE: "r"}
    contents = {
        "q": [section.encode_message(b"x", annotations={"x-opt-sequence-number": Long(1)}, application_properties=own)],
        "q/$DeadLetterQueue": [
            section.encode_message(b"x", application_properties=own | {"DeadLetterReason": "MaxDeliveryCountExceeded"}),
            section.encode_message(b"of nobody"),
        ],
    }
    monkeypatch.setattr(set_aside, "messages", lambda client, path: iter(contents[path]))
    each: Any = SimpleNamespace(
        source=SimpleNamespace(entity="q"),
        is_parking=False,
        is_diverted=True,
        known={"r"},
        route=SimpleNamespace(source=SimpleNamespace(alias="ewr"), entered="flights"),
        routes=[SimpleNamespace(name="r")],
    )
    client: Any = None
    found = count_queue(client, each, Choice())
    assert (found.chosen.count(), found.dead_lettered, found.foreign) == (1, 1, 0)
