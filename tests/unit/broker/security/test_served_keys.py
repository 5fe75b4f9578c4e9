"""isthmus.broker.security.served_keys."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from isthmus.broker.security.emulator_key import EMULATOR_KEY
from isthmus.broker.security.keyring import KEY_FILE, ROOT_KEY_NAME, Keyring
from isthmus.broker.security.served_keys import ServedKeys
from isthmus.entities.catalog.description import AuthorizationRule
from isthmus.errors import InvalidArgumentError
from isthmus.testing.clock import ManualClock


def serve(data: Path, issuer: object = None, *, emulator: bool = False) -> ServedKeys:
    return ServedKeys(data, ManualClock(), issuer, emulator=emulator)  # type: ignore[arg-type]


def change(data: Path, key: str, stamp: int) -> None:
    """The root's primary key is another one in the key file."""
    file = data / KEY_FILE
    content = json.loads(file.read_text())
    content["rules"][0]["primary_key"] = key
    file.write_text(json.dumps(content))
    os.utime(file, (stamp, stamp))


def keys(served: ServedKeys) -> dict[str, str]:
    return {rule.key_name: rule.primary_key for rule in served.keyring.rules}


def unwritten(name: str, right: str) -> AuthorizationRule:
    return AuthorizationRule(name, "", "", [right])


def test_i1_rules_without_keys_keep_those_that_they_had(tmp_path: Path) -> None:
    first = serve(tmp_path)
    first.apply([unwritten("in", "Send"), unwritten("out", "Listen")])
    second = serve(tmp_path)
    second.apply([unwritten("in", "Send")])
    assert set(keys(first)) == {ROOT_KEY_NAME, "in", "out"}
    assert keys(second) == {name: key for name, key in keys(first).items() if name != "out"}
    assert keys(serve(tmp_path)) == keys(second), "the key file has them"


def test_rules_that_the_service_refuses_leave_the_file_as_it_is(tmp_path: Path) -> None:
    served = serve(tmp_path)
    before = (tmp_path / KEY_FILE).read_text()
    with pytest.raises(InvalidArgumentError):
        served.apply([unwritten("in", "Everything")])
    assert (tmp_path / KEY_FILE).read_text() == before


def test_i2_what_cannot_be_read_leaves_the_keys_and_is_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refreshed: list[int] = []
    served = serve(tmp_path, SimpleNamespace(refresh=lambda: refreshed.append(1)))
    before = keys(served)
    change(tmp_path, "fresh", 1)
    with monkeypatch.context() as patch:
        patch.setattr(Keyring, "open", Mock(side_effect=OSError(errno.EMFILE, "too many open files")))
        served.refresh()
        served.refresh()
    assert keys(served) == before
    assert len([each for each in caplog.records if "keys not read again" in each.message]) == 1
    assert len(refreshed) == 2, "the issuer's are read all the same"
    served.refresh()
    assert keys(served) == {ROOT_KEY_NAME: "fresh"}


def test_the_emulators_key_is_taken_beside_those_of_the_file(tmp_path: Path) -> None:
    served = serve(tmp_path, emulator=True)
    [root] = served.keyring.rules
    assert root.secondary_key == EMULATOR_KEY
    assert EMULATOR_KEY not in (tmp_path / KEY_FILE).read_text()
    change(tmp_path, "fresh", 1)
    served.refresh()
    [root] = served.keyring.rules
    assert (root.primary_key, root.secondary_key) == ("fresh", EMULATOR_KEY)
