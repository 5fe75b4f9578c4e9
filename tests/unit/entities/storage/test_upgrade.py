"""Stores that an earlier release wrote."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from isthmus.entities import Engine
from isthmus.entities.storage.key import FORMAT, IDENTITY
from isthmus.entities.storage.upgrade import FORMAT_VERSION, ensure_format, read_identity
from isthmus.errors import StoreError
from isthmus.store import MemoryJournal, RocksJournal
from isthmus.testing.clock import ManualClock

FIXTURES = Path(__file__).parents[3] / "fixtures" / "store"


def fill(journal: Any, version: int) -> Any:
    """The store of an earlier format, as the release of that format left it."""
    batch = journal.batch()
    for key, value in json.loads((FIXTURES / f"format-{version}.json").read_text(encoding="utf-8")):
        batch.put(bytes.fromhex(key), bytes.fromhex(value))
    journal.write(batch)
    journal.sync()
    return journal


def check(journal: Any, read: Any) -> None:
    """What every fixture contains: see how the release itself makes it."""
    clock = ManualClock()
    engine = Engine(journal, clock)
    runtime = engine.runtime("orders")
    assert (runtime.active_message_count, runtime.deferred_message_count) == (3, 1)
    assert (runtime.dead_letter_message_count, runtime.scheduled_message_count) == (1, 1)
    assert [rule.name for rule in engine.list_rules("flights", "late")] == ["late"]
    acquired = engine.receiver("orders").acquire(10)
    assert acquired is not None
    assert [read(payload).user["number"] for payload in acquired.payloads] == [3, 4, 5]
    dead = engine.receiver("orders/$DeadLetterQueue").acquire(10)
    assert dead is not None
    assert [read(payload).user["DeadLetterReason"] for payload in dead.payloads] == ["bad"]
    late = engine.receiver("flights/Subscriptions/late").acquire(10)
    assert late is not None
    assert [read(payload).user["delay"] for payload in late.payloads] == [20]
    sequence = 1
    deferred = engine.receiver("orders").receive_deferred([sequence])
    assert read(deferred.payloads[0]).user["number"] == 0
    clock.advance(3_600_000)
    engine.tick()
    commit = engine.begin_commit()
    assert commit is not None
    engine.end_commit(commit)
    due = engine.receiver("orders").acquire(10)
    assert due is not None
    assert read(due.payloads[-1]).properties["message_id"] == "later"


@pytest.mark.parametrize("version", range(1, FORMAT_VERSION))
def test_every_earlier_format_is_upgraded_and_loses_nothing_i3(version: int, read: Any, tmp_path: Path) -> None:
    for journal in (MemoryJournal(), RocksJournal(tmp_path / "store")):
        fill(journal, version)
        check(journal, read)
        assert journal.get(FORMAT) == str(FORMAT_VERSION).encode()
        store_id = read_identity(journal).store_id
        assert len(store_id) == 32
        assert ensure_format(journal, 5, os.urandom) == FORMAT_VERSION
        assert read_identity(journal).store_id == store_id
    journal.close()


def test_a_kill_leaves_the_one_format_or_the_next_i2(read: Any) -> None:
    for kept in (0, 1):
        journal = fill(MemoryJournal(), 1)
        sync, journal.sync = journal.sync, lambda: None  # type: ignore[method-assign]  # power goes before the sync
        ensure_format(journal, 5, os.urandom)
        journal.sync = sync  # type: ignore[method-assign]
        journal.crash(keep=kept)
        assert (journal.get(FORMAT), journal.get(IDENTITY) is not None) == ((b"1", False), (b"2", True))[kept]
        check(journal, read)


def test_a_refused_upgrade_leaves_the_earlier_format(read: Any) -> None:
    journal = fill(MemoryJournal(), 1)
    journal.fail_writes = OSError("no room")
    with pytest.raises(StoreError, match="no room"):
        Engine(journal, ManualClock())
    journal.fail_writes = None
    assert journal.get(FORMAT) == b"1"
    check(journal, read)


@pytest.mark.parametrize(
    ("row", "text"), [(b"99", "format 99.*formats 1 to"), (b"x", "does not contain a namespace's store")]
)
def test_a_later_format_is_refused_untouched_i1(row: bytes, text: str) -> None:
    journal = MemoryJournal()
    batch = journal.batch()
    batch.put(FORMAT, row)
    journal.write(batch)
    before = journal.unsynced_count
    with pytest.raises(StoreError, match=text):
        Engine(journal, ManualClock())
    assert journal.unsynced_count == before


def test_a_fresh_store_has_todays_format_and_an_identity_of_its_own() -> None:
    first, second = MemoryJournal(), MemoryJournal()
    for journal in (first, second):
        assert ensure_format(journal, 7, os.urandom) == 0
        assert journal.get(FORMAT) == str(FORMAT_VERSION).encode()
    assert read_identity(first).created_at_ms == 7
    assert read_identity(first).store_id != read_identity(second).store_id
