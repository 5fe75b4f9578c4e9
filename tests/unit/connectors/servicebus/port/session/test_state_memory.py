"""The memory of session states across restarts."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from isthmus.connectors.servicebus.port.session import state_memory
from isthmus.connectors.servicebus.port.session.state_copy import NOTHING, digest_of
from isthmus.connectors.servicebus.port.session.state_memory import StateMemory
from isthmus.errors import StoreError

A = digest_of(b"a")


def opened(
    path: Path, source: str = "source", target: str = "target", *, queue: str = "orders", to: str = "copies"
) -> StateMemory:
    memory = StateMemory(path)
    memory.open(source, queue)
    memory.note_target(target, to)
    return memory


def test_what_was_noted_is_there_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "orders.jsonl"
    memory = opened(path)
    memory.note_due("s")
    memory.note_due("é\n\x00")
    memory.note_due("t")
    memory.note_copied("s", A, is_due=False)
    memory.note_copied("u", A, is_due=True)
    memory.note_copied("t", NOTHING, is_due=False)
    memory.note_queried(17)
    again = opened(path)  # the first one was killed
    assert again.copied == {"s": A, "u": A}
    assert list(again.due) == ["é\n\x00", "u"]
    assert again.queried_ms == 17
    assert not again.is_other_target("target", "Copies")
    assert path.stat().st_mode & 0o777 == 0o600


def test_what_was_tried_is_there_until_something_was_copied(tmp_path: Path) -> None:
    path = tmp_path / "orders.jsonl"
    memory = opened(path)
    for name in ("s", "t"):
        memory.note_due(name)
        memory.note_tried(name, A)
        memory.note_tried(name, digest_of(b"b"))
    memory.note_copied("t", A, is_due=True)
    for _ in range(2):  # read, and what was rewritten then
        assert opened(path).tried == {"s": {A, digest_of(b"b")}}
    assert opened(path, target="another").tried == {}


def test_a_line_that_a_kill_left_incomplete_is_passed_over_i1(tmp_path: Path) -> None:
    path = tmp_path / "orders.jsonl"
    opened(path).note_due("s")
    whole = path.read_bytes()
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut] + b'["due","x')
        memory = opened(path)
        memory.note_due("later")
        assert "later" in opened(path).due
        assert set(memory.due) <= {"s", "later"}


@pytest.mark.parametrize(
    "line", ["{}", "[]", "1", '["copied","s"]', '["copied","s","zz"]', '["looked","x"]', "\xff", '["due"]']
)
def test_lines_that_say_nothing_are_passed_over_i1(tmp_path: Path, line: str) -> None:
    path = tmp_path / "orders.jsonl"
    opened(path).note_due("s")
    path.write_bytes(path.read_bytes() + line.encode("latin-1") + b'\n["due","t"]\n')
    assert list(opened(path).due) == ["s", "t"]


def test_another_source_begins_anew_i2(tmp_path: Path) -> None:
    path = tmp_path / "orders.jsonl"
    memory = opened(path)
    memory.note_due("s")
    memory.note_copied("t", A, is_due=False)
    other = opened(path, source="other")
    assert (other.copied, other.due, other.queried_ms) == ({}, {}, 0)


def test_to_another_target_nothing_was_copied_i2(tmp_path: Path) -> None:
    path = tmp_path / "orders.jsonl"
    memory = opened(path)
    memory.note_copied("t", A, is_due=False)
    memory.note_due("s")
    memory.note_queried(17)
    other = opened(path, target="other")
    assert (other.copied, list(other.due), other.queried_ms) == ({}, ["s"], 0)
    again = opened(path, target="other")
    assert (again.copied, list(again.due), again.queried_ms) == ({}, ["s"], 0)


@pytest.mark.parametrize("queue", [{"queue": "others"}, {"to": "others"}])
def test_of_another_queue_of_the_same_namespace_nothing_was_copied_i2(tmp_path: Path, queue: dict[str, str]) -> None:
    path = tmp_path / "orders.jsonl"
    memory = opened(path)
    memory.note_copied("t", A, is_due=False)
    memory.note_queried(17)
    other = opened(path, **queue)
    assert (other.copied, other.queried_ms) == ({}, 0)
    assert opened(path, **queue).copied == {}


def test_a_file_that_names_no_queues_is_of_any(tmp_path: Path) -> None:
    path = tmp_path / "orders.jsonl"
    path.write_text(f'["of","source"]\n["to","target"]\n["copied","t","{A.hex()}"]\n["looked",17]\n')
    assert StateMemory(path).copied == {}
    memory = opened(path)
    assert (memory.copied, memory.queried_ms) == ({"t": A}, 17)
    assert opened(path, to="others").copied == {}


def test_the_file_stays_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_memory, "FEW_LINES", 20)
    path = tmp_path / "orders.jsonl"
    memory = opened(path)
    for number in range(1000):
        memory.note_due("s")
        memory.note_copied("s", digest_of(str(number).encode()), is_due=False)
    assert len(path.read_bytes().splitlines()) <= 21
    assert opened(path).copied == {"s": digest_of(b"999")}


def test_what_the_disk_did_not_take_comes_with_the_next_note_i3(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "orders.jsonl"
    memory = opened(path)
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(StoreError, match="No space left"):
            memory.note_due("s")
    memory.note_due("t")
    assert list(opened(path).due) == ["s", "t"]


def test_a_line_that_was_written_in_part_is_written_again_i3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "orders.jsonl"
    memory = opened(path)
    write = os.write
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:5]))
        memory.note_due("s")
    assert list(opened(path).due) == ["s"]


def test_a_folder_that_cannot_be_made_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    memory = StateMemory(tmp_path / "file" / "orders.jsonl")
    with pytest.raises(StoreError, match="session states in"):
        memory.open("source", "orders")
    with pytest.raises(StoreError):
        memory.note_due("s")


def test_no_state_is_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "orders.jsonl"
    memory = opened(path)
    memory.note_copied("s", digest_of(b"secret"), is_due=False)
    assert b"secret" not in path.read_bytes()
    assert all(isinstance(json.loads(line), list) for line in path.read_bytes().splitlines())


def test_a_file_that_cannot_be_looked_at_is_not_replaced_by_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Since Python 3.14 `Path.exists` is false for any error: what was copied was forgotten."""
    path, real = tmp_path / "orders.jsonl", os.stat
    opened(path).note_copied("s", A, is_due=False)

    def stat(at: Any, **more: Any) -> os.stat_result:
        if at == path:
            raise OSError(errno.EIO, "Input/output error")
        return real(at, **more)

    with monkeypatch.context() as patched:
        patched.setattr(os, "stat", stat)
        patched.setattr(Path, "exists", os.path.exists)
        assert opened(path).copied == {"s": A}
    assert opened(path).copied == {"s": A}
