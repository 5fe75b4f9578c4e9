"""The files of batches."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from isthmus.connectors.servicebus.batch import store as module
from isthmus.connectors.servicebus.batch.store import BatchStore, new_name


@pytest.fixture(name="store")
def _store(tmp_path: Path) -> BatchStore:
    store = BatchStore(tmp_path / "batches" / "query")
    assert store.claim()
    return store


def write(store: BatchStore, batch: int, *numbers: int) -> None:
    writer = store.writer(batch, 0)
    writer.add(numbers, [token(number) for number in numbers], [b"m%d" % number for number in numbers])
    writer.complete(30_000)


def token(number: int) -> bytes:
    return number.to_bytes(15, "big") + b"\0"


def test_what_was_written_is_read(store: BatchStore) -> None:
    write(store, 3, 7, 8, 10)
    index = BatchStore(store.folder).index(3, 0)
    assert index is not None
    assert (index.sequences.tolist(), index.sizes.tolist(), index.lock_ms) == ([7, 8, 10], [2, 2, 3], 30_000)
    assert index.token_list() == [token(7), token(8), token(10)]  # with the zero byte at their end
    with store.payloads(3, 0) as data:
        assert bytes(data) == b"m7m8m10"
    assert store.folder.stat().st_mode & 0o077 == 0


def test_a_batch_without_messages_is_one_all_the_same(store: BatchStore) -> None:
    write(store, 3)
    index = store.index(3, 0)
    assert index is not None
    assert index.count == 0
    with store.payloads(3, 0) as data:
        assert bytes(data) == b""


def test_nothing_counts_before_it_is_complete_i1(store: BatchStore) -> None:
    writer = store.writer(3, 0)
    writer.add([1], [token(1)], [b"m"])
    writer.close()
    assert store.index(3, 0) is None
    assert store.listed("index") == []


@pytest.mark.parametrize("kind", ["index", "payloads"])
@pytest.mark.parametrize("damage", ["torn", "empty", "flipped"])
def test_torn_files_count_as_absent_i2(store: BatchStore, kind: str, damage: str) -> None:
    write(store, 3, 7, 8)
    path = store.path(3, 0, kind)
    data = path.read_bytes()
    flipped = data[:-1] + bytes([data[-1] ^ 1])
    path.write_bytes({"torn": data[:-1], "empty": b"", "flipped": flipped}[damage])
    assert store.index(3, 0, checked=True) is None


def test_what_an_attempt_left_that_died_is_not_taken_for_the_next_ones(store: BatchStore) -> None:
    write(store, 3, 7, 8)
    store.mark_taken(3, 0)
    store.path(3, 0, "index").write_bytes(b"torn")
    os.utime(store.folder / "guard", (1, 1))
    assert store.guarded_seconds() > 1e6
    write(store, 3, 9)
    assert not store.was_taken(3, 0)
    assert store.guarded_seconds() < 60  # its locks may still be valid


def test_one_driver_at_a_time_i3(store: BatchStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OWNER_SECONDS", 0.0)
    other = BatchStore(store.folder)
    assert not other.claim()
    write(store, 3, 7)
    store.close()
    assert other.claim()
    assert other.listed("index") == [(3, 0)]


def test_a_folder_goes_when_nothing_in_it_is_needed(store: BatchStore) -> None:
    write(store, 3, 7)
    store.remove(3, 0)
    store.close()
    assert not store.folder.exists()


def test_the_batches_of_one_entity_are_not_taken_for_those_of_another(store: BatchStore) -> None:
    assert store.entity("orders") == "orders"
    assert store.entity("payments") == "payments"  # nothing of the other remains
    write(store, 3, 7)
    assert store.entity("orders") == "payments"
    store.remove(3, 0)
    assert store.entity("orders") == "orders"


def test_late_messages_outlive_their_batch(store: BatchStore) -> None:
    write(store, 3, 7, 8)
    store.add_late(3, 0, [(7, 1000), (8, 1001)])
    store.remove(3, 0)
    assert store.all_late() == {7: 1000, 8: 1001}
    store.close()
    assert store.folder.exists()
    store.remove_late(3, 0)
    assert store.all_late() == {}


def test_folders_of_queries_that_ended_long_ago_are_removed_unless_in_use(store: BatchStore) -> None:
    base = store.folder.parent
    old, used, strange = BatchStore(base / new_name()), BatchStore(base / new_name()), BatchStore(base / "strange")
    for each in (old, used, strange):
        assert each.claim()
        write(each, 1, 1)
    for each in (old, strange):
        assert each._owner is not None
        os.close(each._owner)
    long_ago = time.time() - module.ABANDONED_SECONDS - 1
    for each in (old, used, strange):
        os.utime(each.folder, (long_ago, long_ago))
    assert BatchStore(base / "new").claim()
    assert [each.folder.exists() for each in (old, used, strange)] == [False, True, True]


def test_i3_a_folder_that_its_owner_removes_as_it_ends_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A query that is stopped and started again at once: the second driver waits for the lock of a file that is deleted then."""
    first, second, third = (BatchStore(tmp_path / "query") for _ in range(3))
    assert first.claim()
    locked = module._locked

    def ends(fd: int) -> bool:
        first.close()
        return locked(fd)

    monkeypatch.setattr(module, "_locked", ends)
    assert second.claim()
    assert second.exists()
    monkeypatch.setattr(module, "_locked", locked)
    monkeypatch.setattr(module, "OWNER_SECONDS", 0.0)
    assert not third.claim()
    second.close()


@pytest.mark.parametrize(("kind", "look"), [("taken", BatchStore.was_taken), ("index", BatchStore.is_torn)])
def test_a_file_that_cannot_be_looked_at_does_not_count_as_absent(
    store: BatchStore, monkeypatch: pytest.MonkeyPatch, kind: str, look: Callable[..., bool]
) -> None:
    """Since Python 3.14 `Path.exists` is false for any error: a batch whose rows were written was received again, or received other messages."""
    write(store, 3, 7)
    store.mark_taken(3, 0)
    path, real = store.path(3, 0, kind), os.stat

    def stat(at: Any, **more: Any) -> os.stat_result:
        if at == path:
            raise OSError(errno.ESTALE, "Stale file handle")
        return real(at, **more)

    monkeypatch.setattr(BatchStore, "index", lambda *_, **__: None)
    monkeypatch.setattr(os, "stat", stat)
    monkeypatch.setattr(Path, "exists", os.path.exists)
    with pytest.raises(OSError, match="Stale file handle"):
        look(store, 3, 0)
