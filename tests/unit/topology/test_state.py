"""Equality of two rules."""

from __future__ import annotations

import pytest

from isthmus.topology.state import RuleState


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("a = 1 AND b  =  2", " a = 1\n AND b = 2 ", True),
        ("city = 'New York'", "city = 'New  York'", False),
        ("city = ' New York'", "city = 'New York'", False),
        ("city IN ('a',\t'b')", "city IN ('a', 'b')", True),
        ("name = 'it''s  a'", "name = 'it''s a'", False),
        ("name  = 'it''s a'", "name = 'it''s a'", True),
        ("[my  name] = 1", "[my name] = 1", False),
        ("[my]]  name] = 1", "[my]] name] = 1", False),
        ('"my  name" = 1', '"my name" = 1', False),
        ("a = 1", "a = 2", False),
    ],
)
def test_white_space_counts_within_quotes_alone(first: str, second: str, same: bool) -> None:
    assert RuleState("r", first).selects_as(RuleState("r", second)) is same
    assert RuleState("r", "1=1", first).selects_as(RuleState("r", "1=1", second)) is same
