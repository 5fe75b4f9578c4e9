"""Files of messages: what two writers and full disks leave."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from isthmus.errors import InvalidArgumentError
from isthmus.operations.message_file import MessageReader, MessageWriter


def test_i1_two_writers_of_one_name_do_not_mix(tmp_path: Path) -> None:
    file = tmp_path / "file"
    with MessageWriter(file, {}) as first, pytest.raises(InvalidArgumentError, match="no message was removed"):
        first.write(b"first", 0)
        with MessageWriter(file, {}) as second:
            second.write(b"second", 0)
            first.finish()
            second.finish()
    with MessageReader(file) as reader:
        assert list(reader) == [(0, b"first")]
    assert list(tmp_path.iterdir()) == [file]


def test_a_full_disk_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("isthmus.operations.message_file.os.fsync", full)
    file = tmp_path / "file"
    with pytest.raises(InvalidArgumentError, match="No space left"), MessageWriter(file, {}) as writer:
        writer.write(b"message", 0)
        writer.finish()
    assert list(tmp_path.iterdir()) == []
