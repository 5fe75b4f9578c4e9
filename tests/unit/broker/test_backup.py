"""Back-ups as folders; of a served namespace they are tested in tests/interop/operator/test_operations.py."""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from isthmus.broker.backup import copy_folder
from isthmus.errors import StoreError


def made(folder: Path, text: str, names: str) -> Path:
    (folder / "store").mkdir(parents=True)
    for name in names:
        (folder / "store" / name).write_text(text)
    return folder


def test_i1_two_copies_to_one_name_do_not_mix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second begins while the first is at work; one of them has the name, whole, and the other one fails."""
    first, second = made(tmp_path / "first", "first", "ab"), made(tmp_path / "second", "second", "bc")
    target = tmp_path / "backups" / "night"
    copytree, runs = shutil.copytree, [lambda: copy_folder(second, target)]

    def beside(*arguments: Any, **options: Any) -> Any:
        found = copytree(*arguments, **options)
        while runs:
            runs.pop()()
        return found

    monkeypatch.setattr(shutil, "copytree", beside)
    with pytest.raises(StoreError, match="could not be written"):
        copy_folder(first, target)
    assert {each.name: each.read_text() for each in (target / "store").iterdir()} == {"b": "second", "c": "second"}
    assert [each.name for each in target.parent.iterdir()] == ["night"]


def test_i1_what_another_copy_has_begun_is_left_alone(tmp_path: Path) -> None:
    source, target = made(tmp_path / "source", "x", "ab"), tmp_path / "night"
    begun = made(tmp_path / "night.partial", "theirs", "z")
    copy_folder(source, target)
    assert sorted(each.name for each in (target / "store").iterdir()) == ["a", "b"]
    assert (begun / "store" / "z").read_text() == "theirs"


def test_i3_what_a_killed_copy_left_goes_with_the_next_one(tmp_path: Path) -> None:
    source = made(tmp_path / "source", "x", "ab")
    left = made(tmp_path / "monday.0123abcd.partial", "half", "a")
    filled = made(tmp_path / "tuesday.0123abcd.partial", "filled by another process", "a")
    young = made(tmp_path / "wednesday.0123abcd.partial", "just begun", "a")
    others = made(tmp_path / "mine.0123abcd.partial", "not of a back-up", "a")
    (others / "notes").write_text("keep")
    for each in (left, filled, others):
        os.utime(each, (0, 0))
    descriptor = os.open(filled, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        copy_folder(source, tmp_path / "thursday")
    finally:
        os.close(descriptor)
    assert not left.exists()
    assert all((each / "store" / "a").exists() for each in (filled, young, others, tmp_path / "thursday"))
