from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from isthmus.broker.security.keyring import ROOT_KEY_NAME, Authority, Keyring, Right, check_rules, new_key
from isthmus.broker.security.sas import (
    ExpiredTokenError,
    InvalidAudienceError,
    InvalidSignatureError,
    MalformedTokenError,
    TokenError,
    make_token,
)
from isthmus.entities.catalog.description import AuthorizationRule
from isthmus.errors import ConfigError, InvalidArgumentError
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


def test_i3_unknown_name_and_wrong_key_get_the_same_answer(authority: Authority) -> None:
    texts = set()
    for name, key in (("nobody", "x"), ("root", "wrong")):
        with pytest.raises(InvalidSignatureError) as caught:
            authority.authorise_token(token("sb://h/q", name, key), "sb://h/q", NOW_MS)
        texts.add(str(caught.value))
    assert texts == {"InvalidSignature: The token has an invalid signature."}


def test_a_bad_signature_is_not_told_that_it_is_expired(authority: Authority) -> None:
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
    held = authority.authorise_plain("partner", "primary-partner")
    monkeypatch.delitem(ENTITY_RULES, "invoices")
    assert {grant.scope_path: authority.stands(grant) for grant in held} == {"orders": True, "invoices": False}


def test_i2_the_key_file_is_private_and_read_again(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    made = Keyring.open(file, CLOCK)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert Keyring.open(file, CLOCK).rules == made.rules
    (root,) = made.rules
    assert (root.key_name, root.rights) == (ROOT_KEY_NAME, ALL)
    assert root.primary_key != root.secondary_key
    assert not list(tmp_path.glob("*.new"))


def test_two_folders_have_different_keys(tmp_path: Path) -> None:
    assert (
        Keyring.open(tmp_path / "a", CLOCK).rules[0].primary_key
        != Keyring.open(tmp_path / "b", CLOCK).rules[0].primary_key
    )


def test_i2_a_key_file_opened_to_others_is_closed_again(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    Keyring.open(file, CLOCK)
    file.chmod(0o644)
    Keyring.open(file, CLOCK)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"version": 2, "rules": []}',
        '{"version": 1, "rules": [{"x": "PLANTED"}]}',
        '{"version": 1, "rules": [{"key_name": "a", "primary_key": 5, "secondary_key": "PLANTED", "rights": ["Send"]}]}',
    ],
)
def test_i4_a_broken_key_file_is_refused_without_quoting_it(tmp_path: Path, content: str) -> None:
    file = tmp_path / "keys.json"
    file.write_text(content)
    with pytest.raises(ConfigError) as caught:
        Keyring.open(file, CLOCK)
    assert str(file) in str(caught.value)
    assert "PLANTED" not in str(caught.value)


def test_i4_no_repr_holds_a_key(tmp_path: Path) -> None:
    keyring = Keyring.open(tmp_path / "keys.json", CLOCK)
    key = keyring.rules[0].primary_key
    assert key in json.loads((tmp_path / "keys.json").read_text())["rules"][0].values()
    assert key not in repr(keyring.rules)
    assert key not in repr(Authority(keyring).authorise_plain(ROOT_KEY_NAME, key))


def test_rotation_keeps_the_other_key(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    keyring = Keyring.open(file, CLOCK)
    old = keyring.rules[0]
    keyring.put(AuthorizationRule(ROOT_KEY_NAME, new_key(), old.secondary_key, ALL))
    keyring.save(file)
    authority = Authority(Keyring.open(file, CLOCK))
    assert authority.authorise_plain(ROOT_KEY_NAME, old.secondary_key)[0].key_name == ROOT_KEY_NAME
    with pytest.raises(InvalidSignatureError):
        authority.authorise_plain(ROOT_KEY_NAME, old.primary_key)


def test_connection_strings() -> None:
    keyring = Keyring([rule("root", ALL)])
    assert (
        keyring.connection_string("localhost:5672", key_name="root", emulator=True)
        == "Endpoint=sb://localhost:5672/;SharedAccessKeyName=root;SharedAccessKey=primary-root;UseDevelopmentEmulator=true"
    )
    assert keyring.connection_string("h", key_name="root", entity_path="q").endswith(";EntityPath=q")
    with pytest.raises(InvalidArgumentError, match="nobody"):
        keyring.connection_string("h", key_name="nobody")


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


def test_a_scope_of_many_segments_is_not_looked_up_segment_by_segment(authority: Authority) -> None:
    """Anybody may show one before any signature was right."""
    asked: list[str] = []
    real = authority._entity_rules.of
    authority._entity_rules.of = lambda path: asked.append(path) or real(path)  # type: ignore[func-returns-value,method-assign]
    with pytest.raises(InvalidSignatureError):
        authority.authorise_token(token("sb://host/" + "a/" * 4000, "nobody", "key"), "sb://host/a", NOW_MS)
    assert len(asked) <= 512
    assert asked[:2] == ["a", "a/a"]
