"""The state file: whole after a kill, never treated as missing, and never reset by work that was overtaken."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from isthmus.pairing.state.state import PairState
from isthmus.pairing.state.state_file import NotPairedError, PairInUseError, StateFile, StateFileError, SupersededError

START = PairState(pair="contoso", active="ewr", standby="jfk")


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    file = StateFile(tmp_path, "contoso")
    with pytest.raises(NotPairedError, match="isthmus pair create contoso"):
        file.load()
    stamp = file.stamp()
    file.save(START)
    assert file.load() == START
    assert file.stamp() != stamp
    assert file.path.stat().st_mode & 0o077 == 0


def test_a_kill_while_it_is_written_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """I1."""
    file = StateFile(tmp_path, "contoso")
    file.save(START)

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fail)
        with pytest.raises(StateFileError, match="No space left on device"):
            file.save(START.begin_forced(1.0))
    assert file.load() == START
    file.save(START.begin_forced(1.0))


def test_a_damaged_one_is_an_error(tmp_path: Path) -> None:
    """I2."""
    file = StateFile(tmp_path, "contoso")
    file.save(START)
    for text in ("", "{}", "[]", '{"version": 1}', "\x00" * 50):
        file.path.write_text(text)
        with pytest.raises(StateFileError, match=r"state\.json.*damaged"):
            file.load()


def test_work_that_a_forced_fail_over_has_overtaken_cannot_set_it_back(tmp_path: Path) -> None:
    """I3."""
    file = StateFile(tmp_path, "contoso")
    file.save(START)
    with file.locked():  # a keeper at work
        forced = file.change(lambda state: state.begin_forced(1.0))
        with pytest.raises(SupersededError, match="epoch 2"):
            file.save(START.intending(["q"]))
    assert file.load() == forced


def test_a_file_that_cannot_be_looked_at_is_not_taken_for_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Since Python 3.14 `Path.exists` is false for any error."""
    file = StateFile(tmp_path, "contoso")
    file.save(START.begin_forced(1.0))
    monkeypatch.setattr(Path, "exists", lambda path: False)
    with pytest.raises(SupersededError):
        file.save(START)
    assert file.load().epoch == START.epoch + 1


def test_one_process_works_at_a_time(tmp_path: Path) -> None:
    file, other = StateFile(tmp_path, "contoso"), StateFile(tmp_path, "contoso")
    with file.locked(), pytest.raises(PairInUseError, match="another process"), other.locked():
        pass
    with other.locked():
        pass


def test_i4_a_pair_that_was_broken_is_not_made_again_by_work_that_is_under_way(tmp_path: Path) -> None:
    file, other = StateFile(tmp_path, "contoso"), StateFile(tmp_path, "contoso")
    file.save(START)
    other.remove()
    with pytest.raises(NotPairedError):
        file.keep(START)
    assert not file.path.exists()


def test_i4_it_is_not_removed_while_it_is_changed(tmp_path: Path) -> None:
    """What has been read before would be written afterwards."""
    file, other = StateFile(tmp_path, "contoso"), StateFile(tmp_path, "contoso")
    file.save(START)
    removing = threading.Thread(target=other.remove)

    def change(state: PairState) -> PairState:
        removing.start()
        removing.join(0.05)
        return state

    file.change(change)
    removing.join()
    assert not file.path.exists()


def test_two_savings_within_one_tick_may_have_the_same_stamp(tmp_path: Path) -> None:
    file = StateFile(tmp_path, "contoso")
    file.save(START)
    stamp = file.stamp()
    assert not stamp.is_sure(stamp.mtime_ns + 4_000_000)
    assert stamp.is_sure(stamp.mtime_ns + 1_000_000_000)
