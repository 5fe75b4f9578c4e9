"""The rule on the mark: which messages it selects."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from isthmus.rules import DictView, parse_filter
from isthmus.topology import read, routes
from isthmus.topology.pattern.part.mark import default_mark, mark_filter

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HEAD = "isthmus: 1\nnamespaces:\n  ewr: {connection: env:%s}\n  jfk: {connection: env:B}\n"


def selects(text: str, user: dict[str, Any], message_id: str = "m") -> bool:
    view = DictView(sys={"MessageId": message_id, "EnqueuedTimeUtc": NOW}, user=user)
    return parse_filter(text).matches(view) is True


@pytest.mark.parametrize(
    "mark",
    [
        None,
        0,
        2,
        -1,
        0.5,
        "",
        "0",
        "1",
        "a\nb",
        True,
        False,
        uuid.UUID(int=0),
        NOW,
        NOW - timedelta(1),
        NOW + timedelta(1),
    ],
    ids=repr,
)
def test_i2_a_mark_of_any_other_type_or_value_is_selected(mark: object) -> None:
    assert selects(mark_filter("seen", is_number=True), {"seen": mark})


@pytest.mark.parametrize("mark", [1, 1.0])
def test_i1_the_number_one_is_not(mark: object) -> None:
    assert not selects(mark_filter("seen", is_number=True), {"seen": mark})


def test_what_no_rule_can_compare_is_not_selected() -> None:
    assert not selects(mark_filter("seen", is_number=True), {"seen": b"\1"})


def test_a_mark_of_the_tasks_own_is_compared_with_the_message_id() -> None:
    text = mark_filter(default_mark("my-flights", ()))
    name = default_mark("my-flights", ())
    assert selects(text, {})
    assert not selects(text, {name: "m"})
    assert selects(text, {name: "another"})
    assert selects(text, {"replication": 1})


def test_a_condition_is_joined() -> None:
    for is_number in (False, True):
        text = mark_filter("seen", "a = 1", is_number=is_number)
        assert selects(text, {"a": 1})
        assert not selects(text, {"a": 2})
        assert not selects(text, {"a": 1, "seen": 1 if is_number else "m"})


def test_tasks_of_one_name_in_two_files_have_marks_of_their_own() -> None:
    task = "tasks:\n  flights: {pattern: all-active, topic: flights, members: [ewr, jfk]%s}\n"
    first, second, chosen = (
        routes(read(HEAD % variable + task % more))[0].options
        for variable, more in (("A", ""), ("C", ""), ("A", ", mark: seen"))
    )
    assert first.mark.startswith("isthmus-flights-")
    assert first.mark != second.mark
    assert (first.mark_is_number, chosen.mark_is_number, chosen.mark) == (False, True, "seen")
