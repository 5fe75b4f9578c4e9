from __future__ import annotations

import logging
from pathlib import Path

import pytest

from isthmus.client.send.replication import Side
from isthmus.client.send.role_state import RoleState
from isthmus.errors import StoreError


def test_roles_survive(tmp_path: Path) -> None:
    state = RoleState(tmp_path / "roles")
    assert state.load() is Side.PRIMARY
    state.save(Side.SECONDARY)
    assert RoleState(tmp_path / "roles").load() is Side.SECONDARY
    assert [path.name for path in tmp_path.iterdir()] == ["roles"]


@pytest.mark.parametrize("text", ["", "{", '{"active": "third"}', "[]", '{"other": 1}'])
def test_a_file_that_cannot_be_understood_is_logged(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "roles").write_text(text)
    with caplog.at_level(logging.WARNING):
        assert RoleState(tmp_path / "roles").load() is Side.PRIMARY
    assert "roles cannot be read" in caplog.text


def test_a_disk_that_refuses_is_told(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot be written"):
        RoleState(tmp_path / "none" / "roles").save(Side.SECONDARY)
