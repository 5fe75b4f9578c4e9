"""Copies that fail, and the others meanwhile."""

from __future__ import annotations

import errno
import os
import random
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from harness.check.until import until
from isthmus.errors import StoreError
from isthmus.store import RocksJournal
from isthmus.store.zone import ZonedJournal, repair, watch
from isthmus.store.zone import journal as zone_journal
from isthmus.store.zone.change import DELETE, POSITION_KEY, PUT, Position, Touched, ZoneBatch, log_key, pack_position
from isthmus.store.zone.member import Member, write_changes
from isthmus.store.zone.note import read_note
from isthmus.store.zone.resilver import common_sequence, copy_rows, copy_touched, copy_whole
from isthmus.store.zone.status import ZoneState

LONG_SECONDS = 120.0
# In a long run.
LIVES = 60


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    return [tmp_path / name / "store" for name in "abc"]


@pytest.fixture
def opened(folders: list[Path]) -> Iterator[ZonedJournal]:
    journal = ZonedJournal(folders)
    yield journal
    journal.close()


def put(journal: ZonedJournal, *keys: str, value: bytes = b"x") -> None:
    batch = journal.batch()
    for key in keys:
        batch.put(key.encode(), value)
    journal.write(batch)
    journal.sync()


def put_everywhere(journal: ZonedJournal, *keys: str) -> None:
    """A copy that is taken out of service now misses nothing of it."""
    put(journal, *keys)
    assert journal.wait_all_synced(journal.sequence, LONG_SECONDS)


def keys(journal: ZonedJournal) -> list[str]:
    return [key.decode() for key, _ in journal.scan(b"", b"\xff")]


def all_serve(journal: ZonedJournal) -> None:
    until(lambda: journal.serving_count == 3)


def contents_of(folder: Path) -> list[str]:
    """What one copy holds by itself."""
    alone = RocksJournal(folder / "db")
    found = [key.decode() for key, _ in alone.scan(b"", b"\xff")]
    alone.close()
    return found


def overwrite(folder: Path) -> None:
    """As `dd` over all files."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            size = path.stat().st_size
            with path.open("r+b") as file:
                file.write(os.urandom(size))


def remove(folder: Path) -> None:
    """As `rm -rf`; what the journal creates there again meanwhile may stay."""
    shutil.rmtree(folder, ignore_errors=True)


def hang(member: Member) -> threading.Event:
    """From now on the copy's disk answers no sync until the event is set."""
    answered = threading.Event()
    journal = member.opened()
    sync = journal.sync

    def late() -> None:
        answered.wait()
        sync()

    journal.sync = late  # type: ignore[method-assign]
    return answered


@pytest.mark.parametrize(
    ("fault", "copy"),
    [(remove, 0), (overwrite, 1), (remove, 2)],
    ids=["first removed", "second overwritten", "third removed"],
)
def test_a_copy_that_goes_is_not_missed_and_comes_back(
    opened: ZonedJournal, folders: list[Path], fault: Callable[[Path], None], copy: int
) -> None:
    put(opened, *(f"a{number:03}" for number in range(100)))
    fault(folders[copy])
    for number in range(50):
        put(opened, f"b{number:03}")
        assert opened.get(b"a050") == b"x"
    until(lambda: opened.zones()[copy].resilvers)
    all_serve(opened)
    put(opened, "last")
    wanted = keys(opened)
    assert len(wanted) == 151
    opened.close()
    assert [contents_of(folder) for folder in folders] == [wanted] * 3
    assert [read_note(folder).repair for folder in folders] == [None] * 3  # type: ignore[union-attr]


def test_i3_a_refused_write_of_any_copy_is_no_failure(opened: ZonedJournal) -> None:
    put(opened, "a")
    for member in opened.members:
        member.opened()._failed = "no space left on device"
        put(opened, f"b{member.index}")
        until(lambda member=member: member.state is ZoneState.SERVING and member.resilvers)  # type: ignore[misc]
    assert keys(opened) == ["a", "b0", "b1", "b2"]


def test_i6_without_a_majority_reads_continue_and_writes_are_refused_until_a_copy_is_back(
    folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = ZonedJournal(folders)
    put(journal, "a")
    monkeypatch.setattr(Member, "open", _refusing)
    for member in journal.members[1:]:
        journal.drop(member, "it failed")
    with pytest.raises(StoreError, match="1 of 3 copies are in service, and 2 are needed"):
        put(journal, "b")
    assert keys(journal) == ["a"]
    journal.reopen()
    with pytest.raises(StoreError, match="1 of 3"):
        put(journal, "b")
    monkeypatch.undo()
    until(lambda: journal.serving_count >= 2)
    journal.reopen()
    put(journal, "c")
    assert keys(journal) == ["a", "c"]
    journal.close()


def _refusing(member: Member, *, create: bool = False) -> None:
    raise StoreError("the disk is away")


def takes_writes(journal: ZonedJournal, key: str) -> bool:
    """As the engine does after a failure: the store is opened again, and tried."""
    journal.reopen()
    try:
        put(journal, key)
    except StoreError:
        return False
    return True


def test_all_copies_refuse_writes_at_once_and_come_back(opened: ZonedJournal) -> None:
    put(opened, "a")
    for member in opened.members:
        member.opened()._failed = "no space left on device"
    with pytest.raises(StoreError, match="no space left"):
        put(opened, "b")
    assert opened.get(b"a") == b"x"
    until(lambda: takes_writes(opened, "c"))
    assert keys(opened) == ["a", "c"]
    all_serve(opened)


def test_the_others_are_made_from_the_last_copy_though_a_sync_of_it_has_failed(
    opened: ZonedJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its disk was full when a whole copy of it was begun: nothing is written to it until there is another one."""
    put_everywhere(opened, "a")
    with monkeypatch.context() as away:
        away.setattr(Member, "check_room", _refusing)
        for member in opened.members:
            if member is not opened.leader:
                opened.drop(member, "it failed", is_damaged=True)
        opened.leader.opened()._failed = "no space left on device"
    until(lambda: takes_writes(opened, "b"))
    all_serve(opened)
    assert keys(opened) == ["a", "b"]


def test_all_syncs_fail_at_once_and_the_copies_come_back(opened: ZonedJournal) -> None:
    put(opened, "a")
    epoch = opened.epoch
    for member in opened.members:
        member.opened().sync = _failing_sync  # type: ignore[method-assign]
    with pytest.raises(StoreError, match="Input/output error"):
        put(opened, "b")
    until(lambda: opened.serving_count == 0)
    assert opened.get(b"a") == b"x"
    for member in opened.members:
        if member.journal is not None:  # otherwise its repair had begun
            del member.journal.sync
    until(lambda: takes_writes(opened, "c"))
    assert opened.epoch > epoch
    assert [key for key in keys(opened) if key != "b"] == ["a", "c"]
    all_serve(opened)


def _failing_sync() -> None:
    raise StoreError("could not be synced: Input/output error")


@pytest.mark.parametrize("copy", [0, 2])
def test_a_disk_that_does_not_answer_delays_no_other(folders: list[Path], copy: int) -> None:
    journal = ZonedJournal(folders, lag_seconds=0.3)
    put(journal, "a")
    answered = hang(journal.members[copy])
    for number in range(20):
        put(journal, f"b{number:02}")
    until(lambda: journal.members[copy].state is ZoneState.DOWN)
    assert "it lags" in journal.zones()[copy].reason or "has not answered" in journal.zones()[copy].reason
    put(journal, "c")
    answered.set()
    all_serve(journal)
    wanted = keys(journal)
    journal.close()
    assert contents_of(folders[copy]) == wanted


def _away() -> None:
    raise StoreError("the disk is away")


def test_a_disk_that_lags_is_not_the_last_that_is_needed(folders: list[Path]) -> None:
    """With two copies a slow one is waited for."""
    journal = ZonedJournal(folders, lag_seconds=0.1)
    put(journal, "a")
    # The obstacle stays: the copy is not tried while the test runs.
    journal.members[0].check_room = _away  # type: ignore[method-assign]
    journal.drop(journal.members[0], "gone")
    answered = hang(journal.members[1])
    waiting = threading.Thread(target=put, args=(journal, "b"))
    waiting.start()
    until(lambda: journal.zones()[1].lag_seconds > 0.3)
    assert journal.serving_count == 2
    assert waiting.is_alive()
    answered.set()
    waiting.join(LONG_SECONDS)
    assert journal.get(b"b") == b"x"
    journal.close()


def test_a_batch_larger_than_the_lag_that_is_allowed_is_no_lag(
    opened: ZonedJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients that are ahead of a slow sync may bring it together."""
    monkeypatch.setattr(zone_journal, "_LAG_BYTES", 1000)
    put(opened, "a", value=bytes(5000))
    assert opened.get(b"a") == bytes(5000)
    assert [zone.drops for zone in opened.zones()] == [0, 0, 0]


def test_bytes_that_wait_take_no_copy_away_that_is_needed(folders: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zone_journal, "_LAG_BYTES", 1000)
    journal = ZonedJournal(folders)
    put(journal, "a")
    journal.members[2].check_room = _away  # type: ignore[method-assign]
    answered = hang(journal.members[1])
    waiting = threading.Thread(target=put, args=(journal, "b"))
    waiting.start()
    until(lambda: journal.members[1].busy_since is not None)
    for key in ("c", "d", "e"):
        batch = journal.batch()
        batch.put(key.encode(), bytes(2000))
        journal.write(batch)
        if key == "c":
            until(lambda: not waiting.is_alive())
            # The second one lags, and is one of the last two from now on.
            journal.drop(journal.members[2], "gone")
    assert [zone.drops for zone in journal.zones()] == [0, 0, 1]
    answered.set()
    journal.sync()
    assert keys(journal) == ["a", "b", "c", "d", "e"]
    journal.close()


def test_i5_a_scan_continues_at_another_copy(opened: ZonedJournal) -> None:
    names = [f"a{number:05}" for number in range(2000)]
    put(opened, *names)
    scan = opened.scan(b"a", b"b")
    seen = [next(scan)[0].decode() for _ in range(700)]
    opened.drop(opened.leader, "it failed")
    all_serve(opened)
    seen += [key.decode() for key, _ in scan]
    assert seen == names


def test_a_scan_that_no_copy_can_serve_is_over(opened: ZonedJournal, monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller that asked for several pairs has none of those before the error: to continue after them would lose them."""
    put(opened, *(f"a{number}" for number in range(9)))
    monkeypatch.setattr(Member, "open", _refusing)
    leader = opened.leader
    for member in opened.members:
        if member is not leader:
            opened.drop(member, "it failed")
    journal = leader.opened()
    scan, failing = journal.scan, [5]

    def flaky(first: bytes, end: bytes, *, read_ahead: bool = False) -> Iterator[tuple[bytes, bytes]]:
        for place, pair in enumerate(scan(first, end)):
            if place in failing:
                failing.clear()
                raise StoreError("Input/output error")
            yield pair

    journal.scan = flaky  # type: ignore[method-assign]
    found = opened.scan(b"a", b"b")
    with pytest.raises(StoreError, match="Input/output error"):
        list(found)
    assert list(found) == []
    assert len(list(opened.scan(b"a", b"b"))) == 9


def test_damage_found_by_a_read_is_read_elsewhere(opened: ZonedJournal) -> None:
    put(opened, "a")
    leader = opened.leader
    journal = leader.opened()

    def damaged(key: bytes) -> bytes:
        raise StoreError("The store is damaged: block checksum mismatch")

    journal.get = damaged  # type: ignore[method-assign]
    assert opened.get(b"a") == b"x"
    assert opened.leader is not leader
    until(lambda: leader.state is ZoneState.SERVING)
    assert leader.journal is not journal


def test_only_what_was_missed_is_copied_to_a_copy_that_was_away_for_a_while(
    opened: ZonedJournal, caplog: pytest.LogCaptureFixture
) -> None:
    put_everywhere(opened, *(f"a{number:03}" for number in range(100)))
    batch = opened.batch()
    batch.delete_range(b"a050", b"a060")
    batch.delete(b"a001")
    member = opened.members[2]
    opened.drop(member, "it failed")
    opened.write(batch)
    opened.sync()
    until(lambda: "the changes that it missed" in caplog.text)
    wanted = keys(opened)
    assert len(wanted) == 89
    opened.close()
    assert contents_of(member.folder) == wanted


def test_a_repair_that_is_broken_off_begins_again(
    opened: ZonedJournal, folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Resilver I3: what was changed while the last attempt copied is not taken for copied."""
    put_everywhere(opened, *(f"a{number:03}" for number in range(100)))
    calls: list[int] = []

    def copy(source: RocksJournal, target: RocksJournal, touched: Touched) -> None:
        calls.append(len(touched))
        if len(calls) == 2:
            raise StoreError("the disk is away again")
        copy_touched(source, target, touched)
        if len(calls) == 1:
            put(opened, *(f"c{number:03}" for number in range(20)))
            put(opened, "a001", value=b"changed")

    monkeypatch.setattr(repair, "copy_touched", copy)
    monkeypatch.setattr(repair, "_LAST_KEYS", 5)
    opened.drop(opened.members[2], "it failed")
    put(opened, *(f"b{number:03}" for number in range(20)))
    until(lambda: opened.members[2].resilvers)
    assert len(calls) > 2
    wanted = list(opened.scan(b"", b"\xff"))
    opened.close()
    alone = RocksJournal(folders[2] / "db")
    assert list(alone.scan(b"", b"\xff")) == wanted
    assert len(wanted) == 140
    alone.close()


def test_a_change_that_one_copy_alone_has_goes(folders: list[Path]) -> None:
    """Two copies continued without the third; what only that one had was not acknowledged."""
    journal = ZonedJournal(folders)
    put(journal, "a")
    journal.close()
    alone = RocksJournal(folders[0] / "db")
    batch = ZoneBatch()
    batch.put(b"b", b"unacknowledged")
    batch.seal(Position(1, 2))
    write_changes(alone, batch.changes)
    alone.close()
    away = folders[0].with_name("away")
    folders[0].rename(away)
    journal = ZonedJournal(folders)
    put(journal, "c")
    journal.abandon()
    left = [folder.parent.with_name(folder.parent.name + "-left") for folder in folders]
    for source, target in zip([away, *folders[1:]], left, strict=True):
        shutil.copytree(source, target)
    journal = ZonedJournal(left)
    all_serve(journal)
    assert keys(journal) == ["a", "c"]
    journal.close()
    assert contents_of(left[0]) == ["a", "c"]


def test_one_copy_alone_is_refused_with_a_reason(folders: list[Path]) -> None:
    journal = ZonedJournal(folders)
    put(journal, "a")
    journal.close()
    shutil.rmtree(folders[0])
    overwrite(folders[1])
    with pytest.raises(StoreError, match="Of the 3 copies of the store 2 are needed") as refused:
        ZonedJournal(folders)
    assert str(folders[0]) in str(refused.value)
    # The remedy that the text names.
    shutil.rmtree(folders[1])
    shutil.copytree(folders[2], folders[1])
    journal = ZonedJournal(folders)
    assert keys(journal) == ["a"]
    all_serve(journal)
    journal.close()


def test_a_copy_of_another_namespace_is_left_alone(folders: list[Path], tmp_path: Path) -> None:
    others = [tmp_path / f"other-{name}" for name in "abc"]
    other = ZonedJournal(others)
    put(other, "theirs")
    other.close()
    journal = ZonedJournal(folders)
    put(journal, "a")
    journal.close()
    journal = ZonedJournal([*folders[:2], others[2]])
    until(lambda: "another namespace" in journal.zones()[2].reason)
    put(journal, "b")
    journal.close()
    assert contents_of(others[2]) == ["theirs"]


def test_all_copies_of_a_served_namespace_missing_is_no_new_namespace(folders: list[Path]) -> None:
    with pytest.raises(StoreError, match="2 are needed"):
        ZonedJournal(folders, may_found=False)


def test_random_faults_and_kills_lose_nothing_acknowledged(
    tmp_path: Path, long_count: Callable[[int], int], counted: Callable[[str, str], None]
) -> None:
    """Any copy may go at any time, and the process too; two copies are whole at each start."""
    rng = random.Random(20_261)
    folders = [tmp_path / "0" / name for name in "abc"]
    wanted: dict[str, bytes] = {}
    unknown: dict[str, set[bytes | None]] = {}
    lives, kills = long_count(LIVES), 0
    for life in range(lives):
        kills += 1
        journal = ZonedJournal(folders, lag_seconds=0.5)
        found = {key.decode(): value for key, value in journal.scan(b"", b"\xff")}
        for key, outcomes in unknown.items():
            assert found.get(key) in outcomes
            if key in found:
                wanted[key] = found[key]
            else:
                wanted.pop(key, None)
        unknown = {}
        assert found == wanted
        all_serve(journal)
        harmed: Member | None = None
        before = 0
        for step in range(40):
            if rng.random() < 0.2 and (harmed is None or harmed.resilvers > before):
                harmed = rng.choice(journal.members)
                before = harmed.resilvers
                _harm(rng, journal, harmed)
            batch = journal.batch()
            changes: dict[str, bytes | None] = {}
            for _ in range(rng.randint(1, 20)):
                key = f"k{rng.randint(0, 300):03}"
                if rng.random() < 0.3:
                    batch.delete(key.encode())
                    changes[key] = None
                else:
                    batch.put(key.encode(), b"%d-%d" % (life, step))
                    changes[key] = b"%d-%d" % (life, step)
            journal.write(batch)
            if step == 39:
                unknown = {key: {wanted.get(key), value} for key, value in changes.items()}
                break
            journal.sync()
            for key, value in changes.items():
                if value is None:
                    wanted.pop(key, None)
                else:
                    wanted[key] = value
        fresh = [tmp_path / str(life + 1) / name for name in "abc"]
        journal.abandon()
        for source, target in zip(folders, fresh, strict=True):  # what a kill leaves
            copy_as_at_one_time(source, target)
        folders = fresh
    counted(f"{lives} kills", f"{kills} kills")


def copy_as_at_one_time(source: Path, target: Path) -> None:
    """Copy what a store's threads may still compact: again, until nothing of it was changed meanwhile."""
    while source.exists():
        before = _files(source)
        shutil.rmtree(target, ignore_errors=True)
        try:
            shutil.copytree(source, target)
        except shutil.Error:  # a file went
            continue
        if _files(source) == before:
            return


def _files(folder: Path) -> dict[Path, tuple[int, int]]:
    found: dict[Path, tuple[int, int]] = {}
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            reported = path.stat()
            found[path] = reported.st_size, reported.st_mtime_ns
    return found


def _harm(rng: random.Random, journal: ZonedJournal, member: Member) -> None:
    what = rng.randrange(4)
    if what == 0:
        shutil.rmtree(member.folder, ignore_errors=True)
    elif what == 1:
        overwrite(member.folder)
    elif what == 2:
        if member.journal is not None:
            member.journal._failed = "no space left on device"
    else:
        journal.drop(member, "it failed")


class StoppedRepair:
    """The repair of a copy, stopped after its first part."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stopped, self.goes_on = threading.Event(), threading.Event()
        monkeypatch.setattr(repair, "copy_rows", self._copy_rows)
        monkeypatch.setattr(repair, "_LAST_KEYS", 0)

    def _copy_rows(self, source: RocksJournal, target: RocksJournal, after: int, last: int) -> None:
        copy_rows(source, target, after, last)
        self.stopped.set()
        assert self.goes_on.wait(LONG_SECONDS)


def test_a_copy_that_comes_back_while_the_others_fail_is_read(
    opened: ZonedJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the copy that is read stays out of service, and no copy comes back from one that is."""
    put_everywhere(opened, "a")
    stopped_repair = StoppedRepair(monkeypatch)
    opened.drop(opened.members[2], "it failed")
    put(opened, "b")
    assert stopped_repair.stopped.wait(LONG_SECONDS)
    opened.drop(opened.members[1], "it failed")
    opened.drop(opened.members[0], "it failed")
    stopped_repair.goes_on.set()
    until(lambda: opened.members[2].state is ZoneState.SERVING)
    until(lambda: takes_writes(opened, "c"))
    assert keys(opened) == ["a", "b", "c"]
    all_serve(opened)


def test_i5_a_copy_does_not_keep_what_the_others_have_lost(
    opened: ZonedJournal, folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it is brought back the others fail, lose a batch that was not on disk, and start again."""
    put_everywhere(opened, "a")
    stopped_repair = StoppedRepair(monkeypatch)
    opened.drop(opened.members[2], "it failed")
    batch = opened.batch()
    batch.put(b"lost", b"x")
    opened.write(batch)
    assert stopped_repair.stopped.wait(LONG_SECONDS)
    lost = Position(opened.epoch, opened.sequence)
    for member in opened.members[:2]:
        member.drain()
        losing(member, lost, b"lost")
    for member in opened.members[:2]:
        opened.drop(member, "it failed")
    until(lambda: takes_writes(opened, "new"))
    stopped_repair.goes_on.set()
    all_serve(opened)
    put(opened, "last")
    opened.close()
    assert [contents_of(folder) for folder in folders] == [["a", "last", "new"]] * 3


def losing(member: Member, lost: Position, key: bytes) -> None:
    """When the copy is opened again its last batch, which put one key, is not there."""
    journal = member.opened()
    reopen = journal.reopen

    def reopen_without() -> None:
        reopen()
        before = Position(lost.epoch, lost.sequence - 1)
        write_changes(
            journal,
            [
                (DELETE, key, b""),
                (DELETE, log_key(lost.sequence), b""),
                (PUT, POSITION_KEY, pack_position(before)),
            ],
        )

    journal.reopen = reopen_without  # type: ignore[method-assign]


def test_a_copy_whose_thread_is_still_at_work_does_not_begin_again(opened: ZonedJournal, folders: list[Path]) -> None:
    """It writes what the others may have lost, under sequences that they use again."""
    put_everywhere(opened, "a")
    first, last = opened.members[:2], opened.members[2]
    journal = last.opened()
    write, goes_on, at_work = journal.write, threading.Event(), threading.Event()

    def late(batch: object) -> None:
        if len(pending) == 2:  # the second of three
            at_work.set()
            assert goes_on.wait(LONG_SECONDS)
        write(batch)  # type: ignore[arg-type]

    pending = last.pending
    for key in (b"kept", b"lost", b"lost too"):
        batch = opened.batch()
        batch.put(key, b"x")
        opened.write(batch)
    assert len(pending) == 3
    journal.write = late  # type: ignore[method-assign]
    opened.sync()
    assert at_work.wait(LONG_SECONDS)
    assert opened.wait_all_synced(opened.sequence, 0.0) is False
    opened.drop(last, "it lags")
    kept = Position(opened.epoch, opened.sequence - 2)
    for member in first:
        losing_all_behind(member, kept)
    with opened.changed:  # both at once: neither is repaired from the other
        for member in first:
            opened.drop(member, "it failed")
    until(lambda: takes_writes(opened, "new"))
    goes_on.set()
    all_serve(opened)
    put(opened, "last")
    opened.close()
    assert [contents_of(folder) for folder in folders] == [["a", "kept", "last", "new"]] * 3


def losing_all_behind(member: Member, kept: Position) -> None:
    """When the copy is opened again it holds nothing behind a batch."""
    journal = member.opened()
    reopen = journal.reopen

    def losing() -> None:
        reopen()
        behind = [(DELETE, log_key(kept.sequence + more), b"") for more in (1, 2)]
        keys = [(DELETE, b"lost", b""), (DELETE, b"lost too", b"")]
        write_changes(journal, [*keys, *behind, (PUT, POSITION_KEY, pack_position(kept))])

    journal.reopen = losing  # type: ignore[method-assign]


def test_an_unexpected_fault_during_the_repair_is_not_its_end(
    opened: ZonedJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_everywhere(opened, "a")
    member = opened.members[2]
    refusals = [PermissionError("not now")]
    check_room = member.check_room

    def check() -> None:
        if refusals:
            raise refusals.pop()
        check_room()

    monkeypatch.setattr(member, "check_room", check)
    opened.drop(member, "it failed")
    all_serve(opened)
    assert not refusals


def test_i5_a_repair_that_a_kill_ended_leaves_nothing_of_what_the_others_have_lost(
    folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was copied last was in the copy that was read, and on no disk of the others."""
    journal = ZonedJournal(folders)
    put_everywhere(journal, "a")
    copied, goes_on = threading.Event(), threading.Event()

    def common(source: RocksJournal, target: RocksJournal) -> int | None:
        batch = journal.batch()
        batch.put(b"lost", b"x")
        journal.write(batch)
        return common_sequence(source, target)

    def copy(source: RocksJournal, target: RocksJournal, touched: Touched) -> None:
        copy_touched(source, target, touched)
        copied.set()
        assert goes_on.wait(LONG_SECONDS)

    with monkeypatch.context() as patch:
        patch.setattr(repair, "common_sequence", common)
        patch.setattr(repair, "copy_touched", copy)
        patch.setattr(repair, "_LAST_KEYS", 0)
        journal.drop(journal.members[2], "it failed")
        assert copied.wait(LONG_SECONDS)
        left = [folder.parent.with_name(folder.parent.name + "-left") for folder in folders]
        for source, target in zip(folders[1:], left[1:], strict=True):  # a kill, and the disk of the first is lost
            shutil.copytree(source, target)
        goes_on.set()
        journal.close()
    journal = ZonedJournal(left)
    all_serve(journal)
    put(journal, "new")
    journal.close()
    assert [contents_of(folder) for folder in left] == [["a", "new"]] * 3


def test_a_kill_during_the_repair_before_anything_is_written_refuses_no_start(
    folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the others hold is of an earlier epoch then, and is all that there is."""
    journal = ZonedJournal(folders)
    put_everywhere(journal, "a")
    journal.close()
    left = [folder.parent.with_name(folder.parent.name + "-left") for folder in folders]
    copied = threading.Event()

    def copy(source: RocksJournal, scratch: Path, folder: Path) -> None:
        for each, target in zip(folders, left, strict=True):  # a kill
            copy_as_at_one_time(each, target)
        copied.set()
        copy_whole(source, scratch, folder)

    journal = ZonedJournal(folders)
    with monkeypatch.context() as patch:
        patch.setattr(repair, "copy_whole", copy)
        journal.drop(journal.members[1], "it failed", is_damaged=True)
        assert copied.wait(LONG_SECONDS)
        all_serve(journal)
    journal.close()
    journal = ZonedJournal(left)
    all_serve(journal)
    assert keys(journal) == ["a"]
    journal.close()


def test_all_folders_that_cannot_be_looked_at_for_a_while_come_back(
    opened: ZonedJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where one power supply feeds all disks: the copies stay consistent."""
    put_everywhere(opened, "a")

    def refused(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(watch, "_seen", refused)
        opened._repair.wake()
        until(lambda: opened.serving_count == 1)
        opened._repair.wake()
        with pytest.raises(StoreError):
            put(opened, "refused")
    assert opened.get(b"a") == b"x"
    until(lambda: takes_writes(opened, "b"))
    all_serve(opened)
    assert keys(opened) == ["a", "b"]


def test_a_copy_that_was_removed_while_all_had_failed_is_no_empty_one(
    opened: ZonedJournal, folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its vote would count for records that it no longer has."""
    put_everywhere(opened, "a")
    batch = opened.batch()
    batch.put(b"b", b"x")
    opened.write(batch)
    for member in opened.members:
        member.drain()
    last = Position(opened.epoch, opened.sequence)
    monkeypatch.setattr(opened._repair, "wake", lambda: None)
    for member in opened.members:
        opened.drop(member, "it failed")
    first, second, third = opened.members
    losing(second, last, b"b")
    away = first.folder.rename(first.folder.with_name("away"))
    for file in third.database.iterdir():
        file.unlink()
    assert not takes_writes(opened, "c")
    assert opened.get(b"b") == b"x"
    away.rename(first.folder)
    monkeypatch.undo()
    until(lambda: takes_writes(opened, "c"))
    assert keys(opened) == ["a", "b", "c"]
    all_serve(opened)


def test_a_write_that_is_refused_leaves_no_row_of_touched_keys_without_those_after_it(
    opened: ZonedJournal, folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the refused batch would have trimmed is trimmed by a later one: a copy would begin at such a row."""
    monkeypatch.setattr(zone_journal, "_LOG_BYTES", 300)
    monkeypatch.setattr(zone_journal, "_LOG_LIMIT_BYTES", 300)
    monkeypatch.setattr(zone_journal, "_LOG_STEP_BYTES", 0)
    for number in range(30):
        put_everywhere(opened, f"a{number:02}")
    _, second, third = opened.members
    for member in (second, third):
        monkeypatch.setattr(member, "check_room", _away)
        opened.drop(member, "it failed")
    for _ in range(3):
        with pytest.raises(StoreError, match="1 of 3"):
            put(opened, "refused")
    monkeypatch.setattr(second, "check_room", lambda: None)
    until(lambda: takes_writes(opened, "b"))
    for number in range(30):
        put(opened, f"c{number:02}")
    monkeypatch.setattr(third, "check_room", lambda: None)
    all_serve(opened)
    put(opened, "last")
    wanted = keys(opened)
    assert len(wanted) == 62
    opened.close()
    assert [contents_of(folder) for folder in folders] == [wanted] * 3
