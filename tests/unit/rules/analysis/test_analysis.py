"""What lint can say of a filter without a message."""

from __future__ import annotations

import pytest

from isthmus.rules import Value, parse_filter
from isthmus.rules.analysis.analysis import needs_property, never_matches, properties, required_properties


@pytest.mark.parametrize(
    "text",
    [
        "1 = 0",
        "1 > 1",
        "'a' = 'b'",
        "1 = '1'",
        "1 / 0 = 1",
        "x = NULL",
        "x <> NULL",
        "x = 1 AND 1 = 0",
        "x = 1 AND x = 2",
        "x = 1 AND x = 'a'",
        "x > 5 AND x < 5",
        "x IS NULL AND x = 1",
        "x IS NULL AND x LIKE 'a%'",
        "x IS NULL AND x + 1 > 2",
        "NOT EXISTS(x) AND x IN (1, 2)",
        "x IN (1, 2) AND x NOT IN (1, 2, 3)",
        "x IN (1, 2) AND x <> 1 AND x <> 2",
        "NOT (x = 1 OR x <> 1)",
        "x > 'b' AND x < 'a'",
        "sys.Label = 5",
        "sys.DeliveryCount = 'x'",
        "sys.DeliveryCount > 1 AND sys.DeliveryCount < 2",
        "a = b AND a IS NULL",
        "NOT 1 = 1",
        "x = TRUE AND x > 0",
    ],
)
def test_filters_that_select_nothing_are_found(text: str) -> None:
    reason = never_matches(parse_filter(text).tree)
    assert reason is not None
    assert "selects nothing" in reason


@pytest.mark.parametrize(
    "text",
    [
        "1 = 1",
        "x = 1",
        "replicated <> 1",
        "replication IS NULL OR replication <> 1",
        "x > 4 AND x < 5",
        "x > 9007199254740992 AND x < 9007199254740994",
        "x > 'a' AND x < 'b'",
        "x LIKE 'a%' AND x LIKE 'b%'",
        "a = b",
        "a + b = 3 AND a = 1",
        "NOT x = 1",
        "x NOT IN (1, 2)",
        "p('x') = 1 AND x IS NULL",
        "newid() <> newid()",
        "EXISTS(x) AND x IS NULL",
        " OR ".join(f"p{n} = {n}" for n in range(40)),
        " AND ".join(f"p{n} IS NULL" for n in range(40)),
    ],
)
def test_filters_that_may_select_something_are_let_pass(text: str) -> None:
    assert never_matches(parse_filter(text).tree) is None


def test_a_bare_loop_mark_needs_the_property() -> None:
    tree = parse_filter("replicated <> 1").tree
    reason = needs_property(tree, "Replicated")
    assert reason is not None
    assert "write replicated IS NULL OR replicated <> 1" in reason
    assert needs_property(parse_filter("replication IS NULL OR replication <> 1").tree, "replication") is None
    assert needs_property(parse_filter("NOT EXISTS(replication)").tree, "replication") is None
    assert needs_property(tree, "other") is None


@pytest.mark.parametrize(
    ("text", "needed"),
    [
        ("a = 1 AND b = 2", ["a", "b"]),
        ("a = 1 OR b = 2", []),
        ("a = 1 AND (b = 2 OR c = 3)", ["a"]),
        ("NOT a = 1", ["a"]),
        ("a IS NOT NULL", ["a"]),
        ("a LIKE 'x%' AND sys.Label = 'y'", ["a", "Label"]),
        ("a + b > 3", ["a", "b"]),
        ("a IN (b, 1)", ["a"]),
        ("p('a') = 1", []),
        ("1 = 1", []),
        ("replicated <> 1 AND region = 'eu'", ["replicated", "region"]),
    ],
)
def test_required_properties(text: str, needed: list[str]) -> None:
    assert [one.name for one in required_properties(parse_filter(text).tree)] == needed


def test_parameters_count_as_constants() -> None:
    parameters: dict[str, Value] = {"@P": 1, "q": 2}
    tree = parse_filter("x = @p AND x = @q", parameters).tree
    assert never_matches(tree, parameters) is not None
    assert never_matches(parse_filter("x > @p AND x < @q", parameters).tree, parameters) is None


def test_properties_are_named_once_in_the_order_of_the_text() -> None:
    tree = parse_filter("b = 1 AND sys.subject = 'x' OR (B > a AND p('c') = 1)").tree
    assert [(one.scope, one.name) for one in properties(tree)] == [("user", "b"), ("sys", "Label"), ("user", "a")]
