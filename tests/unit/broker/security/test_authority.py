"""isthmus.broker.security.authority."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from isthmus.broker.security.authority import Authority
from isthmus.broker.security.grant import Right
from isthmus.broker.security.keyring import Keyring
from isthmus.broker.security.sas import (
    ExpiredTokenError,
    InvalidAudienceError,
    InvalidSignatureError,
    MalformedTokenError,
    TokenError,
    make_token,
)
from isthmus.entities.catalog.description import AuthorizationRule
from isthmus.testing.clock import ManualClock

CLOCK = ManualClock()


NOW_MS = CLOCK.wall_ms()


LATER_MS = NOW_MS + 60_000


ALL = ["Send", "Listen", "Manage"]


def rule(name: str, rights: list[str], mark: str = "") -> AuthorizationRule:
    return AuthorizationRule(name, f"primary-{name}{mark}", f"secondary-{name}{mark}", rights)


ENTITY_RULES = {
    "orders": [rule("partner", ["Send"])],
    "a": [rule("upper", ["Listen"])],
    "a/b": [rule("root", ["Send"], "!")],
}


class Entities:
    """Rules of entities, out of a table."""

    def of(self, path: str) -> list[AuthorizationRule]:
        return ENTITY_RULES.get(path, [])

    def named(self, key_name: str) -> Iterator[tuple[str, AuthorizationRule]]:
        return ((path, each) for path, rules in ENTITY_RULES.items() for each in rules if each.key_name == key_name)

    def exists(self, path: str) -> bool:
        return path in ENTITY_RULES


@pytest.fixture
def authority() -> Authority:
    return Authority(Keyring([rule("root", ALL), rule("reader", ["Listen"])]), Entities())


def token(resource: str, name: str, key: str = "", expires_at_ms: int = LATER_MS) -> str:
    return make_token(resource, name, key or f"primary-{name}", expires_at_ms)


def test_a_namespace_token_opens_the_audience_it_is_shown_for_and_no_more(authority: Authority) -> None:
    grant = authority.authorise_token(token("sb://host", "root"), "sb://host/orders", NOW_MS)
    assert grant.scope_path == "orders"
    assert grant.expires_at_ms == LATER_MS
    assert all(grant.covers("sb://host/Orders/$management", right) for right in Right)
    assert not grant.covers("orders-secret", Right.SEND)
    assert not grant.covers("other", Right.SEND)


def test_either_key_signs(authority: Authority) -> None:
    for key in ("primary-root", "secondary-root"):
        assert authority.authorise_token(token("sb://h/q", "root", key), "sb://h/q", NOW_MS).key_name == "root"


def test_rights_are_the_rule_s(authority: Authority) -> None:
    grant = authority.authorise_token(token("sb://h/q", "reader"), "sb://h/q", NOW_MS)
    assert [grant.covers("q", right) for right in (Right.SEND, Right.LISTEN, Right.MANAGE)] == [False, True, False]


def test_i1_a_token_for_orders_never_opens_orders_secret(authority: Authority) -> None:
    with pytest.raises(InvalidAudienceError):
        authority.authorise_token(token("sb://h/orders", "root"), "sb://h/orders-secret", NOW_MS)
    with pytest.raises(InvalidAudienceError):
        authority.authorise_token(token("sb://h/orders", "root"), "sb://h/", NOW_MS)


def test_an_entity_s_rule_opens_entities_below_it_as_the_service_documents(authority: Authority) -> None:
    assert ENTITY_RULES["a/b"]  # an entity of its own
    assert authority.authorise_token(token("sb://h/a", "upper"), "sb://h/a/b", NOW_MS).covers("a/b", Right.LISTEN)
    with pytest.raises(TokenError):
        authority.authorise_token(token("sb://h/a/b", "root", "primary-root!"), "sb://h/a", NOW_MS)
    with pytest.raises(TokenError):
        authority.authorise_token(token("sb://h/a", "upper"), "sb://h/ab", NOW_MS)


def test_i1_an_entity_s_rule_signs_for_that_entity_and_below(authority: Authority) -> None:
    grant = authority.authorise_token(token("sb://h/orders", "partner"), "amqps://h/Orders/$management", NOW_MS)
    assert grant.covers("orders/$management", Right.SEND)
    assert not grant.covers("orders/$management", Right.LISTEN)
    for resource in ("sb://h/", "sb://h/orders-secret", "sb://h/other"):
        with pytest.raises(InvalidSignatureError):
            authority.authorise_token(token(resource, "partner"), resource, NOW_MS)


def test_rules_of_parents_count_and_names_may_repeat(authority: Authority) -> None:
    assert authority.authorise_token(token("sb://h/a/b/c", "upper"), "sb://h/a/b/c", NOW_MS).rights == {Right.LISTEN}
    own = authority.authorise_token(token("sb://h/a/b", "root", "primary-root!"), "sb://h/a/b", NOW_MS)
    assert own.rights == {Right.SEND}
    assert authority.authorise_token(token("sb://h/a/b", "root"), "sb://h/a/b", NOW_MS).rights == set(Right)


def test_expiry_is_judged_by_wall_time(authority: Authority) -> None:
    expiring = token("sb://h/q", "root", expires_at_ms=NOW_MS)
    with pytest.raises(ExpiredTokenError):
        authority.authorise_token(expiring, "sb://h/q", NOW_MS)
    grant = authority.authorise_token(expiring, "sb://h/q", NOW_MS - 1)
    assert grant.is_expired(NOW_MS)
    assert not grant.is_expired(NOW_MS - 1)


def test_i2_unknown_name_and_wrong_key_get_the_same_answer(authority: Authority) -> None:
    texts = set()
    for name, key in (("nobody", "x"), ("root", "wrong")):
        with pytest.raises(InvalidSignatureError) as caught:
            authority.authorise_token(token("sb://h/q", name, key), "sb://h/q", NOW_MS)
        texts.add(str(caught.value))
    assert texts == {"InvalidSignature: The token has an invalid signature."}


def test_a_bad_signature_is_not_reported_that_it_is_expired(authority: Authority) -> None:
    with pytest.raises(InvalidSignatureError):
        authority.authorise_token(token("sb://h/q", "root", "wrong", NOW_MS - 1), "sb://h/q", NOW_MS)


def test_other_kinds_of_tokens_are_refused(authority: Authority) -> None:
    with pytest.raises(MalformedTokenError):
        authority.authorise_token("Bearer abc", "sb://h/q", NOW_MS)


def test_plain(authority: Authority) -> None:
    [root] = authority.authorise_plain("root", "secondary-root")
    assert root.covers("anything", Right.MANAGE)
    [grant] = authority.authorise_plain("reader", "primary-reader")
    assert grant.covers("q", Right.LISTEN)
    assert not grant.covers("q", Right.SEND)
    assert not grant.is_expired(10**18)
    for name, key in (
        ("reader", "primary-root"),
        ("nobody", ""),
        ("reader", ""),
        ("partner", "wrong"),
        ("upper", "primary-partner"),
    ):
        with pytest.raises(TokenError) as caught:
            authority.authorise_plain(name, key)
        assert str(caught.value) == "InvalidSignature: The key is invalid."


def test_plain_with_an_entity_s_key_opens_that_entity_i1(authority: Authority) -> None:
    [grant] = authority.authorise_plain("partner", "secondary-partner")
    assert grant.covers("sb://h/Orders/$management", Right.SEND)
    assert not any(grant.covers(path, Right.SEND) for path in ("", "orders-secret", "a", "a/b"))
    assert not grant.covers("orders", Right.LISTEN)
    # A name that the namespace has as well: the key decides.
    [own] = authority.authorise_plain("root", "primary-root!")
    assert (own.scope_path, own.rights) == ("a/b", {Right.SEND})


def test_plain_with_a_key_that_several_entities_share_opens_each_with_its_rights_i1(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ENTITY_RULES, "invoices", [rule("partner", ["Listen"])])
    grants = {grant.scope_path: grant.rights for grant in authority.authorise_plain("partner", "primary-partner")}
    assert grants == {"orders": {Right.SEND}, "invoices": {Right.LISTEN}}
    granted = authority.authorise_plain("partner", "primary-partner")
    monkeypatch.delitem(ENTITY_RULES, "invoices")
    assert {grant.scope_path: authority.is_current(grant) for grant in granted} == {"orders": True, "invoices": False}


def test_a_scope_of_many_segments_is_not_looked_up_segment_by_segment(authority: Authority) -> None:
    """Anybody may show one before any signature was right."""
    asked: list[str] = []
    real = authority._entity_rules.of
    authority._entity_rules.of = lambda path: asked.append(path) or real(path)  # type: ignore[func-returns-value,method-assign]
    with pytest.raises(InvalidSignatureError):
        authority.authorise_token(token("sb://host/" + "a/" * 4000, "nobody", "key"), "sb://host/a", NOW_MS)
    assert len(asked) <= 512
    assert asked[:2] == ["a", "a/a"]
