"""Bodies of large messages as files."""

from __future__ import annotations

import ctypes
import errno
import os
import threading
from pathlib import Path

import pytest

from isthmus.errors import StoreError
from isthmus.store import BlobFolder, blob


def write(folder: BlobFolder, number: int, *parts: bytes) -> None:
    writer = folder.create(number)
    writer.write(parts)
    writer.sync()
    writer.close()


def test_a_body_is_read_as_it_was_written(tmp_path: Path) -> None:
    folder = BlobFolder(tmp_path / "large")
    assert folder.numbers() == []
    parts = [os.urandom(n % 97) for n in range(2500)]
    write(folder, 300, *parts)
    whole = b"".join(parts)
    reader = BlobFolder(tmp_path / "large").open(300)
    assert reader.read(0, len(whole)) == whole
    assert reader.read(1000, 10) == whole[1000:1010]
    with pytest.raises(StoreError, match=r"ends 1 bytes before byte"):
        reader.read(len(whole) - 9, 10)
    reader.close()
    assert (folder.numbers(), folder.size_bytes) == ([300], len(whole))
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "large").iterdir()} == {0o600}


def test_what_is_settled_piece_by_piece_is_whole_with_or_without_the_system_s_help(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    fdatasync = os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda file: (synced.append(file), fdatasync(file))[1])
    pieces = [os.urandom(300_000) for _ in range(6)]
    for number, call in enumerate((blob._sync_file_range, None, lambda *_: -1)):
        monkeypatch.setattr(blob, "_sync_file_range", call)
        ctypes.set_errno(errno.ENOSYS)
        writer = BlobFolder(tmp_path / "large").create(number)
        for piece in pieces:
            writer.write((piece,))
            writer.settle()
        assert len(synced) == 6 * number  # none where the system can do with less
        writer.sync()
        writer.close()
        synced.pop()
        reader = BlobFolder(tmp_path / "large").open(number)
        assert reader.read(0, 1_800_000) == b"".join(pieces)
        reader.close()


def test_a_disk_that_refuses_while_it_settles_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = BlobFolder(tmp_path / "large").create(1)
    writer.write((b"x",))
    monkeypatch.setattr(blob, "_sync_file_range", lambda *_: ctypes.set_errno(errno.EIO) or -1)
    with pytest.raises(StoreError, match="Input/output error"):
        writer.settle()
    writer.close()


def test_a_removed_body_does_not_exist_and_another_cannot_be_read(tmp_path: Path) -> None:
    folder = BlobFolder(tmp_path / "large")
    write(folder, 1, bytes(9 << 20))
    folder.remove(1)
    folder.remove(1)
    assert folder.numbers() == []
    with pytest.raises(StoreError, match="No such file"):
        folder.open(1)


def test_a_number_is_written_once(tmp_path: Path) -> None:
    folder = BlobFolder(tmp_path / "large")
    write(folder, 1, b"x")
    with pytest.raises(StoreError, match="exists"):
        folder.create(1)


def test_a_copy_keeps_what_is_removed_from_the_original(tmp_path: Path) -> None:
    folder = BlobFolder(tmp_path / "large")
    body = os.urandom(9 << 20)
    write(folder, 1, body)
    folder.copy_to(tmp_path / "copy")
    folder.remove(1)
    assert BlobFolder(tmp_path / "copy").open(1).read(0, len(body)) == body


def test_i2_nothing_is_removed_while_it_is_kept(tmp_path: Path) -> None:
    folder = BlobFolder(tmp_path / "large")
    write(folder, 1, b"x")
    remover = threading.Thread(target=folder.remove, args=(1,))
    with folder.kept():
        remover.start()
        remover.join(0.05)
        assert folder.numbers() == [1]
    remover.join()
    assert folder.numbers() == []
