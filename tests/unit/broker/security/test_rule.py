"""isthmus.broker.security.rule."""

from __future__ import annotations

import pytest

from isthmus.broker.security.rule import check_rules, merge_rules
from isthmus.entities.catalog.description import AuthorizationRule
from isthmus.errors import InvalidArgumentError


def rule(name: str, rights: list[str], mark: str = "") -> AuthorizationRule:
    return AuthorizationRule(name, f"primary-{name}{mark}", f"secondary-{name}{mark}", rights)


@pytest.mark.parametrize(
    "rules",
    [
        [rule("", ["Send"])],
        [rule("x" * 257, ["Send"])],
        [rule("a", ["Send"]), rule("a", ["Send"])],
        [rule("a", [])],
        [rule("a", ["Everything"])],
        [rule("a", ["Send", "Send"])],
        [rule("a", ["Manage"])],
        [AuthorizationRule("a", "", "x", ["Send"])],
        [rule(str(i), ["Send"]) for i in range(13)],
    ],
)
def test_rules_that_the_service_refuses(rules: list[AuthorizationRule]) -> None:
    with pytest.raises(InvalidArgumentError):
        check_rules(rules)


def test_i1_no_error_text_holds_a_key() -> None:
    for rules in ([rule("a", ["Manage"])], [rule("a", ["Send"]), rule("a", ["Send"])]):
        with pytest.raises(InvalidArgumentError) as reported:
            check_rules(rules)
        assert "primary-a" not in str(reported.value)


def test_a_key_that_is_not_written_is_the_existing_one_or_a_new_one() -> None:
    existing = rule("a", ["Send"])
    written = [AuthorizationRule("a", "", "other", ["Send"]), AuthorizationRule("b", "", "", ["Listen"])]
    kept, made = merge_rules(written, [existing], 1000)
    assert (kept.primary_key, kept.secondary_key, kept.modified_at_ms) == ("primary-a", "other", 1000)
    assert made.primary_key
    assert made.primary_key != made.secondary_key
