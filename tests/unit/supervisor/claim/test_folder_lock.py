"""Runs that would share a state folder."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from isthmus.errors import IsthmusError
from isthmus.supervisor.claim.folder_lock import FolderInUseError, former_folders, locked_folder

HOLD = (
    "import sys; from pathlib import Path; from isthmus.supervisor.claim.folder_lock import locked_folder\n"
    "with locked_folder(Path(sys.argv[1])):\n    print('held', flush=True)\n    sys.stdin.read()"
)


def test_i1_a_second_run_is_refused_with_what_to_do(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    with locked_folder(folder), pytest.raises(FolderInUseError, match=r"another run .*--state"), locked_folder(folder):
        pass
    with locked_folder(folder):
        pass
    assert isinstance(FolderInUseError(), IsthmusError)


def test_what_a_file_of_another_name_has_left_is_found(tmp_path: Path) -> None:
    """A file that is renamed has another state folder: its spools would be read by no run, and its paused tasks would continue."""
    file, folders = tmp_path / "prod.yaml", tmp_path / ".isthmus"
    for stem in ("isthmus", "other", "empty", "prod"):
        with locked_folder(folders / stem):
            pass
    for stem in ("isthmus", "other", "prod"):
        (folders / stem / "paused.json").write_text("{}")
    for name in ("prod", "other"):
        (tmp_path / f"{name}.yaml").touch()
    assert former_folders(folders / "prod", str(file)) == [folders / "isthmus"]
    assert former_folders(tmp_path / "elsewhere", str(file)) == []


def test_i1_what_a_killed_run_had_locked_is_free(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(FolderInUseError), locked_folder(tmp_path):
            pass
        process.send_signal(signal.SIGKILL)
        process.wait()
    with locked_folder(tmp_path):
        pass
