from __future__ import annotations

import math
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from isthmus.rules import DictView, Filter
from isthmus.rules.analysis.contrary import not_true
from isthmus.rules.syntax.tree import render

NOW = datetime(2026, 1, 1, tzinfo=UTC)
VALUES = (
    None,
    "",
    "a",
    "b\nc",
    0,
    1,
    -1,
    1.5,
    math.nan,
    True,
    False,
    uuid.UUID(int=1),
    NOW,
    NOW - timedelta(1),
    NOW + timedelta(1),
)
ATOMS = (
    "p = 'a'", "p <> 'a'", "p < 1", "1 <= p", "p = TRUE", "p IN ('a', 'b')", "p NOT IN (1, 2)", "p LIKE 'a%'", "p NOT LIKE '%b%'",
    "p IS NULL", "p IS NOT NULL", "EXISTS(p)", "q = 'a'", "q > 0.5", "sys.Label = 'a'", "sys.Label LIKE 'b%'", "sys.Label IS NULL",
)  # fmt: skip


def conditions() -> st.SearchStrategy[str]:
    return st.recursive(
        st.sampled_from(ATOMS),
        lambda inner: st.one_of(
            st.builds("NOT ({})".format, inner),
            st.builds("({}) AND ({})".format, inner, inner),
            st.builds("({}) OR ({})".format, inner, inner),
        ),
        max_leaves=5,
    )


def users() -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(st.sampled_from(["p", "q"]), st.sampled_from(VALUES))


@given(conditions(), users(), st.sampled_from([None, "a", "b"]))
@example("p <> 'a'", {"p": 1}, None)
@example("NOT (p = 'a')", {}, None)
def test_i1_of_a_filter_and_its_contrary_exactly_one_selects(
    text: str, user: dict[str, Any], label: str | None
) -> None:
    view = DictView(sys={"Label": label, "EnqueuedTimeUtc": NOW}, user=user)
    contrary = not_true(Filter(text).tree)
    assert contrary is not None
    written = render(contrary)
    assert (Filter(text).matches(view) is True) != (Filter(written).matches(view) is True), written


@pytest.mark.parametrize(
    "text",
    [
        "sys.Label = 5", "sys.Label IN (1, 2)", "sys.SequenceNumber = '5'", "sys.SequenceNumber LIKE '5%'",
        "sys.EnqueuedTimeUtc < '2026-01-01'", "sys.TimeToLive > 60", "p = 'a' OR sys.ExpiresAtUtc > '2026-01-01'",
        "sys.DeliveryCount = TRUE",
    ],
)  # fmt: skip
def test_a_system_property_compared_with_what_it_never_is_has_no_contrary_i1(text: str) -> None:
    """Such a condition is unknown of every message that has the property, and so would be its contrary."""
    assert not_true(Filter(text).tree) is None


@pytest.mark.parametrize(
    "text",
    ["sys.Label IN ('a', 1)", "sys.SequenceNumber = 7", "sys.SequenceNumber >= 7.0", "sys.SequenceNumber IN (1, 'a')"],
)
@pytest.mark.parametrize("sequence", [1, 7, 8])
@pytest.mark.parametrize("label", [None, "a", "b"])
def test_a_system_property_among_constants_of_its_type_has_a_contrary_i1(
    text: str, sequence: int, label: str | None
) -> None:
    view = DictView(sys={"Label": label, "SequenceNumber": sequence})
    contrary = not_true(Filter(text).tree)
    assert contrary is not None
    assert (Filter(text).matches(view) is True) != (Filter(render(contrary)).matches(view) is True)


@pytest.mark.parametrize(
    "text", ["p = q", "p + 1 = 2", "p IN ('a', 1)", "p = newid()", "p LIKE q", "property('p') = 1", "p = NULL"]
)
def test_what_cannot_be_decided_has_no_contrary(text: str) -> None:
    assert not_true(Filter(text).tree) is None
