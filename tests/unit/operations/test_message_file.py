"""Files of messages: what two writers and full disks leave."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from isthmus.errors import InvalidArgumentError
from isthmus.operations.message_file import MessageReader, MessageWriter


def test_i1_two_writers_of_one_name_do_not_mix(tmp_path: Path) -> None:
    file = tmp_path / "file"
    with MessageWriter(file, {}) as first, MessageWriter(file, {}) as second:
        first.write(b"first", 0)
        second.write(b"second", 0)
        first.finish()
        with pytest.raises(InvalidArgumentError, match="no message was removed"):
            second.finish()
        second.__exit__(InvalidArgumentError, None, None)
    with MessageReader(file) as reader:
        assert list(reader) == [(0, b"first")]
    assert list(tmp_path.iterdir()) == [file]


def write_one(file: Path) -> None:
    with MessageWriter(file, {}) as writer:
        writer.write(b"message", 0)
        writer.finish()


def test_a_full_disk_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("isthmus.operations.message_file.os.fsync", full)
    with pytest.raises(InvalidArgumentError, match="No space left"):
        write_one(tmp_path / "file")
    assert list(tmp_path.iterdir()) == []
