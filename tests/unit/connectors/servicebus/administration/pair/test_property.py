"""Descriptions of a pair's entities, without a namespace; with one they are tested in tests/interop/federation/test_pair.py."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from azure.servicebus.management import SqlRuleAction, SqlRuleFilter

from isthmus.connectors.servicebus.administration.pair.property import describe_rule
from isthmus.topology.pair.description import Description
from isthmus.topology.pair.difference import unlike


def rule(condition: str, action: str = "") -> Description:
    made = SimpleNamespace(name="r", filter=SqlRuleFilter(condition), action=SqlRuleAction(action) if action else None)
    return describe_rule("t", "s", made)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("city = 'New York'", "city = 'New  York'"),
        ("city = ' EWR'", "city = 'EWR'"),
        ("city = 'it''s  it'", "city = 'it''s it'"),
        ("[a  b] = 1", "[a b] = 1"),
        ('"a  b" = 1', '"a b" = 1'),
    ],
)
def test_spaces_within_quotes_distinguish_rules(one: str, other: str) -> None:
    assert unlike(rule(one), rule(other)) == ("filter",)
    assert unlike(rule("1=1", f"SET x = {one}"), rule("1=1", f"SET x = {other}")) == ("action",)


def test_other_spaces_do_not() -> None:
    assert unlike(rule("a = 'x  y'  AND\n b = 1 "), rule("a = 'x  y' AND b = 1")) == ()
    assert unlike(rule("a = 'left  open"), rule("a = 'left open")) == ()
