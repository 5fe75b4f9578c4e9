"""isthmus.broker.security.keyring, and its key file."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from isthmus.broker.security.authority import Authority
from isthmus.broker.security.keyring import ROOT_KEY_NAME, Keyring
from isthmus.broker.security.rule import new_key
from isthmus.broker.security.sas import InvalidSignatureError
from isthmus.entities.catalog.description import AuthorizationRule
from isthmus.errors import ConfigError, InvalidArgumentError
from isthmus.testing.clock import ManualClock

CLOCK = ManualClock()
ALL = ["Send", "Listen", "Manage"]


def rule(name: str, rights: list[str], mark: str = "") -> AuthorizationRule:
    return AuthorizationRule(name, f"primary-{name}{mark}", f"secondary-{name}{mark}", rights)


def test_i1_the_key_file_is_private_and_read_again(tmp_path: Path) -> None:
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


def test_i1_a_key_file_opened_to_others_is_closed_again(tmp_path: Path) -> None:
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
def test_i2_a_broken_key_file_is_refused_without_quoting_it(tmp_path: Path, content: str) -> None:
    file = tmp_path / "keys.json"
    file.write_text(content)
    with pytest.raises(ConfigError) as caught:
        Keyring.open(file, CLOCK)
    assert str(file) in str(caught.value)
    assert "PLANTED" not in str(caught.value)


def test_i2_no_repr_holds_a_key(tmp_path: Path) -> None:
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
