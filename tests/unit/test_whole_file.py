from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from isthmus.whole_file import write_file


def test_i1_the_mode_is_private_whatever_the_mask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        write_file(tmp_path / "key", b"1")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600


def test_replaces_what_exists_and_what_an_interruption_left(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"old")
    (tmp_path / "key.new").write_bytes(b"half")
    write_file(tmp_path / "key", b"new")
    assert (tmp_path / "key").read_bytes() == b"new"
    assert not (tmp_path / "key.new").exists()


def test_i2_a_refused_write_leaves_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "key").write_bytes(b"old")

    def refuse(descriptor: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="disk full"):
        write_file(tmp_path / "key", b"new")
    assert (tmp_path / "key").read_bytes() == b"old"


def test_i2_the_contents_and_then_the_name_are_on_disk_before_it_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = []

    def note(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)

    monkeypatch.setattr(os, "fsync", note)
    write_file(tmp_path / "state", b"new", suffix=".1.new")
    assert synced == ["state.1.new", tmp_path.name]
