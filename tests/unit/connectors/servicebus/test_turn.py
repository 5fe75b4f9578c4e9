"""Whose turn it is: the files by which two queries of a route know it."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from isthmus.connectors.servicebus.turn import FIRST, SECOND, Place, Turn, prepare_turns
from isthmus.errors import InvalidArgumentError

LEAD = 1.0
HOLD = """
import sys, time
from pathlib import Path
from isthmus.connectors.servicebus.turn import Turn
turn = Turn(Path(sys.argv[1]), "first")
assert turn.take(time.monotonic() + 60)
print("mine", flush=True)
time.sleep(60)
"""


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Path:
    folder = tmp_path / "route" / "turns"
    prepare_turns(folder)
    return folder


@pytest.fixture(name="first")
def _first(folder: Path) -> Turn:
    return Turn(folder, FIRST)


@pytest.fixture(name="second")
def _second(folder: Path) -> Turn:
    return Turn(folder, SECOND)


def soon() -> float:
    return time.monotonic() + LEAD / 2


def later() -> float:
    return time.monotonic() + 60


def test_one_has_the_turn_until_it_leaves_i1(first: Turn, second: Turn) -> None:
    assert first.take(later())
    assert first.take(later()), "asking again takes nothing from itself"
    assert not second.take(later())
    assert 59 < second.remaining_seconds() <= 60
    first.leave()
    assert second.remaining_seconds() == 0
    assert second.take(later())
    assert not first.take(later())


def test_asking_again_and_again_opens_one_file_and_leaving_closes_it(first: Turn, second: Turn) -> None:
    assert first.take(later())
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        assert not second.take(later())
    assert len(os.listdir("/proc/self/fd")) == before + 1
    second.leave()
    assert len(os.listdir("/proc/self/fd")) == before
    first.leave()
    assert second.take(later())


def test_a_turn_ends_with_the_process_that_has_it_i1(folder: Path, second: Turn) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"mine\n"
            assert not second.take(later())
        finally:
            os.kill(process.pid, signal.SIGKILL)
    assert second.take(later())


def test_the_lease_hears_that_another_is_ready(first: Turn, second: Turn) -> None:
    first.take(soon())
    assert not first.is_awaited()
    second.stand_next()
    assert first.is_awaited()
    first.leave()
    assert second.take(later())
    assert not second.is_awaited(), "it does not await itself"


def test_who_gives_up_waiting_is_awaited_no_more(first: Turn, second: Turn) -> None:
    first.take(soon())
    second.stand_next()
    second.leave()
    assert not first.is_awaited()


def test_the_first_looks_first_and_later_who_had_the_turn_last_i2(first: Turn, second: Turn) -> None:
    assert (first.place(LEAD), second.place(LEAD)) == (Place.LOOK, Place.WAIT)
    second.take(later())
    second.leave()
    assert (first.place(LEAD), second.place(LEAD)) == (Place.WAIT, Place.LOOK)


def test_the_other_begins_shortly_before_the_end(first: Turn, second: Turn) -> None:
    first.take(later())
    assert (first.place(LEAD), second.place(LEAD)) == (Place.WAIT, Place.WAIT)
    first.leave()
    first.take(soon())
    assert (first.place(LEAD), second.place(LEAD)) == (Place.WAIT, Place.STAND_NEXT)


def test_nobody_looks_while_one_is_about_to_take_over(first: Turn, second: Turn) -> None:
    first.take(soon())
    second.stand_next()
    first.leave()
    assert first.place(LEAD) is Place.WAIT


def test_a_run_that_starts_again_begins_with_the_first(folder: Path, first: Turn, second: Turn) -> None:
    second.take(later())
    second.leave()
    prepare_turns(folder)
    assert first.place(LEAD) is Place.LOOK


def test_who_looks_while_a_run_starts_again_reads_a_whole_note(folder: Path, second: Turn) -> None:
    over = threading.Event()

    def prepare() -> None:
        while not over.is_set():
            prepare_turns(folder)

    thread = threading.Thread(target=prepare)
    thread.start()
    try:
        assert {second.place(LEAD) for _ in range(2000)} == {Place.WAIT}
    finally:
        over.set()
        thread.join()


def test_a_run_that_starts_again_stands_next_to_a_worker_that_is_left(folder: Path, first: Turn, second: Turn) -> None:
    second.take(later())
    prepare_turns(folder)
    assert (first.place(LEAD), Turn(folder, SECOND).place(LEAD)) == (Place.WAIT, Place.STAND_NEXT)
    second.leave()
    assert first.place(LEAD) is Place.LOOK


def test_a_folder_that_nobody_prepared_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"nowhere' was not prepared; start both queries by start_turns"):
        Turn(tmp_path / "nowhere", FIRST)
