"""isthmus.client.outbox.store: messages that are set aside."""

from __future__ import annotations

import errno
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from isthmus.client.outbox import store
from isthmus.client.outbox.folder import Folder
from isthmus.client.outbox.frame import encode_record
from isthmus.client.outbox.store import FolderSource, Store, claim, refused
from isthmus.client.send.durable_sender import AsyncDurableSender, DurableSender
from isthmus.errors import InvalidArgumentError


def opened(path: Path) -> FolderSource:
    store = Store(path)
    store.append((b"first", b"second"))
    source = FolderSource(store.folder)
    assert source.acquire()
    return source


def test_a_refused_message_is_kept_whole_though_the_disk_takes_half_a_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = opened(tmp_path / "outbox")
    batch = source.next_batch(5, 1)
    assert batch is not None
    with monkeypatch.context() as patched:
        real = os.write
        patched.setattr(os, "write", lambda descriptor, data: real(descriptor, bytes(data)[: len(data) // 2]))
        source.set_aside(batch, "too large")
    assert refused(Folder(tmp_path / "outbox")) == [("too large", b"first")]
    following = source.next_batch(1000, 10)
    assert following is not None
    assert following.payloads == [b"second"]
    source.release()


def test_what_was_found_counts_though_the_clock_was_set_back_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New messages of a `ReplicatedSender` would overtake it, and `flush` would return too early."""
    now_ns = time.time_ns()
    Store(tmp_path).append((b"before",))
    monkeypatch.setattr(time, "time_ns", lambda: now_ns - 3_600_000_000_000)
    store = Store(tmp_path)
    assert not store.is_empty
    source = FolderSource(store.folder)
    assert source.acquire()
    batch = source.next_batch(1000, 10)
    assert batch is not None
    source.done(batch)
    assert store.is_empty
    source.release()


def test_a_message_that_cannot_be_set_aside_stays_in_the_outbox(tmp_path: Path) -> None:
    source = opened(tmp_path / "outbox")
    batch = source.next_batch(5, 1)
    assert batch is not None
    Folder(tmp_path / "outbox").refused_path.symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space"):
        source.set_aside(batch, "too large")
    source.release()
    assert source.acquire()
    again = source.next_batch(1000, 10)
    assert again is not None
    assert again.payloads == [b"first", b"second"]
    source.release()


def test_what_was_delivered_is_not_sent_again_because_the_disk_takes_no_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk that copies on write: the same messages were sent once a second for as long as it was full."""
    source = opened(tmp_path / "outbox")
    batch = source.next_batch(5, 1)
    assert batch is not None
    assert batch.payloads == [b"first"]

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        with pytest.raises(OSError, match="No space"):
            source.done(batch)
        source.release()  # as a drain continues after an error
        assert source.acquire()
        with pytest.raises(OSError, match="No space"):
            source.next_batch(1000, 10)
        source.release()
    assert source.acquire()
    following = source.next_batch(1000, 10)
    assert following is not None
    assert following.payloads == [b"second"]
    source.release()


@pytest.mark.parametrize(("keeps", "is_damaged"), [(-4, False), (10, False), (2, False), (None, True)])
def test_damaged_bytes_among_refused_messages_are_told_and_an_interrupted_write_is_none(
    keeps: int | None, is_damaged: bool, tmp_path: Path
) -> None:
    """Of that its message is set aside again."""
    folder = Folder(tmp_path)
    records = [encode_record([b'{"reason": "large"}', b"message %d" % number], 0) for number in range(3)]
    if keeps is None:
        records[1] = records[1][:-4] + b"oops"
    else:
        records[1] = records[1][:keeps]
    folder.refused_path.write_bytes(b"".join(records))
    damaged: list[bool] = []
    assert refused(folder, lambda: damaged.append(True)) == [("large", b"message 0"), ("large", b"message 2")]
    assert bool(damaged) == is_damaged


def test_of_two_that_begin_an_outbox_for_two_entities_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise one would deliver what the other has kept, to its own entity."""
    both, write = threading.Barrier(2), store.write_file

    def write_file(*args: Any, **options: Any) -> None:
        with suppress(threading.BrokenBarrierError):
            both.wait(0.2)  # in vain, where they do not come here at one time
        write(*args, **options)

    monkeypatch.setattr(store, "write_file", write_file)
    folder = Folder(tmp_path)

    def begin(entity: str) -> bool:
        try:
            claim(folder, entity)
        except InvalidArgumentError:
            return False
        return True

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(begin, ("orders", "invoices"))) == [False, True]


def test_the_sender_for_asyncio_has_what_the_one_for_threads_has() -> None:
    def public(kind: type) -> set[str]:
        return {name for name in vars(kind) if not name.startswith("_")}

    assert public(DurableSender) - public(AsyncDurableSender) == {"keep"}  # of encoded messages, for `ReplicatedSender`
