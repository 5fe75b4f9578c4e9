"""isthmus.broker.security.grant."""

from __future__ import annotations

from isthmus.broker.security.grant import Grant, Right


def test_i1_it_reaches_its_scope_and_what_is_below() -> None:
    grant = Grant("orders", frozenset({Right.SEND}), "partner")
    assert grant.covers("sb://host/Orders", Right.SEND)
    assert grant.covers("orders/$management", Right.SEND)
    assert not grant.covers("orders-secret", Right.SEND)
    assert not grant.covers("orders", Right.LISTEN)


def test_manage_includes_the_others() -> None:
    grant = Grant("", frozenset({Right.MANAGE}), "root")
    assert all(grant.covers("any/path", right) for right in Right)


def test_i2_no_repr_holds_a_key() -> None:
    assert "secret" not in repr(Grant("", frozenset(), "root", key="secret"))


def test_a_key_given_directly_does_not_expire() -> None:
    assert not Grant("", frozenset(), "root").is_expired(1 << 60)
    assert Grant("", frozenset(), "root", 1000).is_expired(1000)
