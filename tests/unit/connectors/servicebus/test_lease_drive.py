"""The turns of a lease: one thread at a time, and none left out."""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from isthmus.connectors.servicebus.lease_drive import AWAY_SECONDS, Drive


class Lease:
    """Turns that wait for a poke, note who ran them, and make what a reader waits for."""

    def __init__(self) -> None:
        self.drive = Drive(self.turn, self.poke)
        self.pokes: queue.Queue[str] = queue.Queue()
        self.made: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.turns: list[int] = []
        self.at_once = threading.Lock()
        self.raised: list[Exception] = []
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        try:
            self.drive.run()
        except Exception as error:  # noqa: BLE001 - looked at by the tests
            self.raised.append(error)

    def poke(self) -> None:
        self.pokes.put("poke")

    def turn(self, until: float) -> bool:
        assert self.at_once.acquire(blocking=False), "two threads run a turn"
        try:
            self.turns.append(threading.get_ident())
            try:
                word = self.pokes.get(timeout=max(0.0, min(5.0, until - time.monotonic())))
            except queue.Empty:
                return True
            if word == "fault":
                raise ValueError(word)
            if word not in ("poke", "end"):
                self.made.put(word)
            return word != "end"
        finally:
            self.at_once.release()

    def take(self, seconds: float = 10.0) -> Any:
        until = time.monotonic() + seconds
        self.drive.help(lambda: not self.made.empty(), until)
        try:
            return self.made.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            return None


@pytest.fixture
def lease() -> Iterator[Lease]:
    made = Lease()
    yield made
    made.pokes.put("end")
    made.thread.join(10)
    assert not made.thread.is_alive()


def test_the_lease_runs_its_turns_itself_until_they_are_lent(lease: Lease) -> None:
    lease.pokes.put("a")
    assert lease.take() == "a"
    assert threading.get_ident() not in lease.turns


def test_a_reader_that_waits_runs_the_turns(lease: Lease) -> None:
    lease.drive.lend(True)
    lease.pokes.put("poke")
    threading.Timer(0.05, lease.pokes.put, ["a"]).start()
    assert lease.take() == "a"
    assert lease.turns[-1] == threading.get_ident()


def test_a_reader_waits_no_longer_than_it_said(lease: Lease) -> None:
    lease.drive.lend(True)
    before = time.monotonic()
    assert lease.take(0.05) is None
    assert 0.05 <= time.monotonic() - before < 5


def test_turns_go_on_while_the_reader_is_away_i2(lease: Lease) -> None:
    lease.drive.lend(True)
    assert lease.take(0.01) is None
    lease.turns.clear()
    time.sleep(4 * AWAY_SECONDS)
    lease.pokes.put("a")
    assert lease.made.get(timeout=10) == "a"
    assert set(lease.turns) == {lease.thread.ident}
    lease.pokes.put("b")
    assert lease.take() == "b", "and are the reader's again when it is back"


def test_one_thread_at_a_time_runs_a_turn_i1(lease: Lease) -> None:
    lease.drive.lend(True)
    for number in range(300):
        lease.drive.lend(number % 7 != 0)
        lease.pokes.put(str(number))
        assert lease.take() == str(number)
        if number % 50 == 0:
            time.sleep(2 * AWAY_SECONDS)
    assert lease.raised == []
    assert len(set(lease.turns)) == 2


@pytest.mark.parametrize("lent", [True, False])
def test_what_a_turn_raises_is_raised_in_the_lease_i3(lent: bool) -> None:
    lease = Lease()
    lease.drive.lend(lent)
    lease.pokes.put("poke")
    lease.pokes.put("fault")
    assert lease.take(0.2) is None
    lease.thread.join(10)
    assert [str(error) for error in lease.raised] == ["fault"]


def test_after_the_last_turn_a_reader_runs_none() -> None:
    lease = Lease()
    lease.drive.lend(True)
    lease.pokes.put("end")
    lease.take(0.2)
    lease.thread.join(10)
    count = len(lease.turns)
    lease.drive.help(lambda: False, math.inf)
    assert len(lease.turns) == count
