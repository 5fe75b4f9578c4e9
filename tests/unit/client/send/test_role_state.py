from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
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


def test_a_disk_that_refuses_is_reported(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot be written"):
        RoleState(tmp_path / "none" / "roles").save(Side.SECONDARY)


def test_threads_that_swap_at_the_same_time_do_not_take_each_others_file(tmp_path: Path) -> None:
    states = [RoleState(tmp_path / "roles") for _ in range(2)]

    def save(number: int) -> None:
        states[number % 2].save(Side.SECONDARY)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(save, range(200)))
    assert states[0].load() is Side.SECONDARY
    assert [path.name for path in tmp_path.iterdir()] == ["roles"]
