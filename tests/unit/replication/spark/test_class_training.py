from __future__ import annotations

import io
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from isthmus.replication.spark import class_training
from isthmus.replication.spark.class_archive import ClassArchive, ClassArchiveError, archive_of
from isthmus.replication.spark.java import find_java


def archive_after(monkeypatch: pytest.MonkeyPatch, folder: Path, status: int) -> ClassArchive:
    """Write an archive by a Java that ends with a status, after it has written something."""

    def start(*_: object, archive_file: Path, **__: object) -> Any:
        archive_file.write_bytes(b"classes")
        machine = SimpleNamespace(stdin=io.BytesIO(), wait=lambda timeout: status)
        gateway = SimpleNamespace(proc=machine, shutdown=lambda: None)
        return SimpleNamespace(sparkContext=SimpleNamespace(_gateway=gateway), stop=lambda: None)

    monkeypatch.setattr(sys, "prefix", str(folder))
    monkeypatch.setattr(class_training, "create_spark_session", start)
    monkeypatch.setattr(class_training, "_use", lambda *_: None)
    archive = archive_of(find_java())
    class_training.write_archive(archive)
    return archive


def test_what_java_wrote_is_in_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = archive_after(monkeypatch, tmp_path, 0)
    assert archive.is_present
    assert archive.file.read_bytes() == b"classes"


def test_a_part_that_a_full_disk_left_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ClassArchiveError, match="Java ended with status 1"):
        archive_after(monkeypatch, tmp_path, 1)
    assert not list(tmp_path.rglob("*.jsa"))
