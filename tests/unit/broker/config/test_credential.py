"""The sections of a namespace's file about keys and issuers."""

import pytest

from isthmus.broker.config.namespace_file import read_config
from isthmus.broker.security.jwt_setting import JwtSettings
from isthmus.entities.catalog.description import AuthorizationRule
from isthmus.errors import ConfigError


def test_rules_of_the_namespace_and_of_entities(monkeypatch, tmp_path):
    monkeypatch.setenv("PARTNER_KEY", "first")
    (tmp_path / "key").write_text("second\n")
    config = read_config(
        f"""
authorization_rules:
  sender: {{rights: [Send]}}
queues:
  orders:
    lock_duration: 30s
    authorization_rules:
      partner: {{rights: [Send, Listen], primary_key: env:PARTNER_KEY, secondary_key: "file:{tmp_path}/key"}}
  plain: {{}}
topics:
  flights:
    authorization_rules:
      all: {{rights: Manage}}
    subscriptions: [s]
""",
        "f",
    )
    assert config.authorization_rules == {
        "": [AuthorizationRule("sender", "", "", ["Send"])],
        "orders": [AuthorizationRule("partner", "first", "second", ["Send", "Listen"])],
        "flights": [AuthorizationRule("all", "", "", ["Send", "Listen", "Manage"])],
    }
    assert config.queues["orders"].lock_duration_ms == 30_000


def test_an_issuer(tmp_path):
    config = read_config("jwt: {issuer: https://i/, keys: keys.pem, audience: here}", str(tmp_path / "f"))
    assert config.jwt == JwtSettings("https://i/", tmp_path / "keys.pem", ("here",))
    config = read_config("jwt: {issuer: https://i/, keys: /k.json, rights_claim: scp}", str(tmp_path / "f"))
    assert config.jwt is not None
    assert (str(config.jwt.keys), config.jwt.rights_claim) == ("/k.json", "scp")
    assert "https://servicebus.azure.net" in config.jwt.audiences


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("authorization_rules: {a: {rights: [Sent]}}", "has an unknown right"),
        ("authorization_rules: {a: {}}", "has no rights"),
        ("authorization_rules: {a: {rights: [Send], key: x}}", "has no setting 'key'"),
        ("authorization_rules: {a: {rights: [Send], primary_key: PLANTED}}", "a key of .* cannot be read"),
        ("authorization_rules: {a: {rights: [Send], primary_key: env:NOT_THERE_AT_ALL}}", "cannot be read"),
        ("authorization_rules: {a: {rights: [Send], primary_key: file:/not/there}}", "cannot be read"),
        ("authorization_rules: [a]", "is not a mapping"),
        ("queues: {q: {authorization_rules: {a: 3}}}", "is not a mapping"),
        ("jwt: {keys: k}", "jwt has no issuer"),
        ("jwt: {issuer: i}", "jwt has no keys"),
        ("jwt: {issuer: i, keys: k, secret: x}", "has no setting 'secret'"),
        ("jwt: 3", "jwt is not a mapping"),
    ],
)
def test_faults_are_reported_without_keys_i1(text, message):
    with pytest.raises(ConfigError, match=message) as caught:
        read_config(text, "f")
    assert "PLANTED" not in str(caught.value)
