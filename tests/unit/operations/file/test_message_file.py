"""Files of messages: what two writers and full disks leave."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from isthmus.cli.app import exit_code
from isthmus.errors import InvalidArgumentError
from isthmus.operations.file.message_file import (
    DamagedFileError,
    FileInUseError,
    FileNotWrittenError,
    MessageReader,
    MessageWriter,
)


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


def test_a_name_that_cannot_be_looked_for_is_given_to_no_other_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a file system without links. Since Python 3.14 `Path.exists` is false for any error."""
    file = tmp_path / "file"

    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("isthmus.operations.file.message_file.os.link", refused)
    with MessageWriter(file, {}) as writer:
        file.write_bytes(b"another")
        with monkeypatch.context() as patched:
            patched.setattr(Path, "stat", refused)
            patched.setattr(Path, "exists", lambda path: False)
            with pytest.raises(FileNotWrittenError, match="Input/output error"):
                writer.finish()
        writer.__exit__(FileNotWrittenError, None, None)
    assert file.read_bytes() == b"another"


def test_a_full_disk_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("isthmus.operations.file.message_file.os.fsync", full)
    with pytest.raises(FileNotWrittenError, match="No space left") as refused:
        write_one(tmp_path / "file")
    assert list(tmp_path.iterdir()) == []
    assert exit_code(refused.value) == 1


@pytest.mark.parametrize("header", [b"[]", b"7", b"{", b"\xff"])
def test_i2_a_header_that_is_none_is_damage(tmp_path: Path, header: bytes) -> None:
    (tmp_path / "file").write_bytes(b"isthmus messages 1\n" + len(header).to_bytes(4, "big") + header)
    with pytest.raises(DamagedFileError, match="header"):
        MessageReader(tmp_path / "file")


def test_a_file_is_imported_by_one_process_at_a_time(tmp_path: Path) -> None:
    write_one(tmp_path / "file")
    with MessageReader(tmp_path / "file") as first, MessageReader(tmp_path / "file") as second:
        first.lock()
        with pytest.raises(FileInUseError, match="another process"):
            second.lock()
        first.close()
        second.lock()
