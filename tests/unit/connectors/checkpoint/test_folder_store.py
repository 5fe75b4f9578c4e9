"""isthmus.connectors.checkpoint.folder_store and .checkpoint."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from typing import Any

import pytest

from isthmus.connectors.checkpoint.checkpoint import Checkpoint, CheckpointError, GroupKey
from isthmus.connectors.checkpoint.folder_store import FolderStore

KEY = GroupKey("ns-1", "host", "Flights", "$Default")


def test_what_was_written_stays(tmp_path: Path) -> None:
    FolderStore(str(tmp_path / "a" / "b")).write(KEY, {0: Checkpoint(7, "1:2:3"), 3: Checkpoint(-1, "-1")})
    again = FolderStore(str(tmp_path / "a" / "b"))
    assert again.load(KEY) == {0: Checkpoint(7, "1:2:3"), 3: Checkpoint(-1, "-1")}
    assert again.load(KEY._replace(hub="flights")) == again.load(KEY)
    assert again.load(KEY._replace(group="other")) == {}
    assert again.load(KEY._replace(identity="ns-2")) == {}


def test_a_late_writer_takes_nothing_back(tmp_path: Path) -> None:
    """isthmus.connectors.checkpoint.checkpoint, I1."""
    store = FolderStore(str(tmp_path))
    store.write(KEY, {0: Checkpoint(9, "90"), 1: Checkpoint(9, "90")})
    store.write(KEY, {0: Checkpoint(4, "40"), 1: Checkpoint(4, "40", begins_again=True)})
    assert store.load(KEY) == {0: Checkpoint(9, "90"), 1: Checkpoint(4, "40")}


def test_a_checkpoint_is_kept_with_the_time_at_which_its_log_was_made(tmp_path: Path) -> None:
    """A writer that reads the log before takes nothing back, though its numbers are higher; one of the next is not kept from it."""
    store = FolderStore(str(tmp_path))
    first, second = KEY._replace(created_ms=5), KEY._replace(created_ms=7)
    store.write(first, {0: Checkpoint(90, "900")})
    assert store.load(KEY) == {0: Checkpoint(90, "900", created_ms=5)}
    store.write(second, {0: Checkpoint(4, "40")})
    store.write(first, {0: Checkpoint(95, "950")})
    store.write(second, {0: Checkpoint(3, "30")})
    assert store.load(KEY) == {0: Checkpoint(4, "40", created_ms=7)}
    store.write(KEY, {0: Checkpoint(5, "50")})
    assert store.load(KEY) == {0: Checkpoint(5, "50")}, "one that does not know it"


@pytest.mark.parametrize("name", [".", "..", "a/../../b", "ä%2F"])
def test_no_name_leads_out_of_the_folder(tmp_path: Path, name: str) -> None:
    store = FolderStore(str(tmp_path / "in"))
    key = KEY._replace(hub=name, group=name)
    store.write(key, {0: Checkpoint(1)})
    assert store.load(key) == {0: Checkpoint(1)}
    assert [each.name for each in tmp_path.iterdir()] == ["in"]
    assert len(list((tmp_path / "in").rglob("0.json"))) == 1
    assert len(next((tmp_path / "in").rglob("0.json")).relative_to(tmp_path / "in").parts) == 4


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"sequence_number": "7", "offset": ""}',
        '{"sequence_number": true}',
        '{"sequence_number": 1, "offset": "", "created_ms": "7"}',
    ],
)
def test_what_is_no_checkpoint_is_reported_with_its_place(tmp_path: Path, text: str) -> None:
    store = FolderStore(str(tmp_path))
    store.write(KEY, {0: Checkpoint(1)})
    file = next(tmp_path.rglob("0.json"))
    file.write_text(text)
    with pytest.raises(CheckpointError, match=re.escape(str(file))):
        store.load(KEY)


def test_a_folder_that_cannot_be_used_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="checkpoints in"):
        FolderStore(str(tmp_path / "file")).write(KEY, {0: Checkpoint(1)})


def test_a_folder_that_cannot_be_looked_at_is_not_taken_for_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Since Python 3.14 `Path.is_dir` is false for any error: the route began where `start` says, e.g. behind what the group had not read."""
    store, real = FolderStore(str(tmp_path)), os.stat
    store.write(KEY, {0: Checkpoint(7, "1:2:3")})

    def refused(path: Any, **more: Any) -> os.stat_result:
        if str(path).startswith(str(tmp_path)):
            raise OSError(errno.EACCES, "Permission denied")
        return real(path, **more)

    def listed(path: Any) -> list[str]:
        raise OSError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "stat", refused)
    monkeypatch.setattr(os, "listdir", listed)
    monkeypatch.setattr(Path, "is_dir", os.path.isdir)
    with pytest.raises(CheckpointError, match="Permission denied"):
        store.load(KEY)
