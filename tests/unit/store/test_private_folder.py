"""Folders of the owner alone: modes that are narrowed while files appear and disappear."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.store import narrow_files


def test_a_file_that_goes_meanwhile_leaves_no_other_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [tmp_path / name for name in ("1.log", "2.sst", "3.sst")]
    for file in files:
        file.write_bytes(b"x")
        file.chmod(0o644)
    chmod = Path.chmod
    missing: list[Path] = []

    def of_a_file_that_goes(self: Path, mode: int) -> None:
        if not missing:
            self.unlink()
            missing.append(self)
        chmod(self, mode)

    monkeypatch.setattr(Path, "chmod", of_a_file_that_goes)
    narrow_files(tmp_path)
    assert [file.stat().st_mode & 0o777 for file in files if file not in missing] == [0o600, 0o600]


def test_a_folder_that_is_not_there_is_passed_over(tmp_path: Path) -> None:
    narrow_files(tmp_path / "none")
