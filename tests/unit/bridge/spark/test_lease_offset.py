"""When the next lease starts."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from isthmus.bridge.frame import Kind, pack_json, unpack_json
from isthmus.bridge.host.channel import Channel
from isthmus.bridge.host.control.client import ControlError, ControlKeyError
from isthmus.bridge.spark import lease_offset
from isthmus.bridge.spark.lease_offset import GIVE_UP_SECONDS, PAUSE_SECONDS, LeaseOffset
from isthmus.bridge.spark.option import ReadOptions
from isthmus.errors import ConnectionLostError, IsthmusError

OPTIONS = ReadOptions(query="q", control="127.0.0.1:1", control_token="t")


class Driver:
    """The other end, which answers one look after another on a thread of its own."""

    def __init__(self, *stopping: bool) -> None:
        self.here, there = socket.socketpair()
        self.asked: list[str] = []
        self._stopping = stopping
        self._end = there
        self._thread = threading.Thread(target=self._answer)
        self._thread.start()

    def _answer(self) -> None:
        for stopping in self._stopping:
            channel = Channel(self._end)
            self._end.setblocking(True)
            frames: list[tuple[int, bytes]] = []
            data = self._end.recv(1, socket.MSG_PEEK)
            self._end.setblocking(False)
            if not data:
                return
            frames = channel.receive()
            assert [kind for kind, _ in frames] == [Kind.LOOK]
            self.asked.append(unpack_json(frames[0][1])["query"])
            channel.send(Kind.LOOKED, pack_json({"stopping": stopping}))
            channel.flush()

    def close(self) -> None:
        self._thread.join()
        self._end.close()


class Clock:
    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


@pytest.fixture(name="clock")
def _clock() -> Clock:
    return Clock()


@pytest.fixture(name="driver")
def _driver() -> Iterator[Driver]:
    driver = Driver(False, True, False)
    yield driver
    driver.here.close()
    driver.close()


def offsets(clock: Clock, dial: Callable[..., Channel], options: ReadOptions = OPTIONS) -> LeaseOffset:
    return LeaseOffset(options, dial=dial, clock=clock, sleep=clock.sleep)


def no_dial(*_: object) -> Channel:
    raise AssertionError("no request is expected")


def test_without_a_driver_a_lease_follows_the_other(clock: Clock) -> None:
    made = offsets(clock, no_dial, ReadOptions())
    assert [made.after(0), made.after(1)] == [1, 2]
    assert clock.pauses == []


def test_a_query_of_what_is_available_now_has_one_lease(clock: Clock) -> None:
    made = offsets(clock, no_dial, ReadOptions())
    made.only_one()
    assert [made.after(4), made.after(5), made.after(5)] == [5, 5, 5]


def test_no_lease_starts_while_the_run_is_stopping_i2(clock: Clock, driver: Driver) -> None:
    dialled: list[tuple[object, ...]] = []

    def dial(*reported: object) -> Channel:
        dialled.append(reported)
        return Channel(driver.here)

    made = offsets(clock, dial)
    assert [made.after(0), made.after(1), made.after(1)] == [1, 1, 2]
    assert clock.pauses == [PAUSE_SECONDS]
    assert driver.asked == ["q", "q", "q"]
    assert dialled == [("127.0.0.1:1", "t", lease_offset.ANSWER_SECONDS)]
    made.close()


def test_a_driver_that_is_unavailable_fails_the_query_after_a_while_i3(clock: Clock) -> None:
    def dial(*_: object) -> Channel:
        raise ControlError("cannot reach the driver at 127.0.0.1:1")

    made = offsets(clock, dial)
    while clock.now < GIVE_UP_SECONDS:
        assert made.after(3) == 3
    with pytest.raises(IsthmusError, match="cannot reach"):
        made.after(3)


def test_a_wrong_key_fails_it_at_once_i3(clock: Clock) -> None:
    def dial(*_: object) -> Channel:
        raise ControlKeyError("another run")

    with pytest.raises(ControlKeyError):
        offsets(clock, dial).after(0)


def test_a_connection_that_was_lost_is_made_again(clock: Clock) -> None:
    first, second = Driver(), Driver(False)
    first.close()
    ends = [first.here, second.here]
    made = offsets(clock, lambda *_: Channel(ends.pop(0)))
    assert [made.after(0), made.after(0)] == [0, 1]
    made.close()
    second.close()


def test_no_answer_is_not_waited_for_long_i1(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = socket.socketpair()
    monkeypatch.setattr(lease_offset, "ANSWER_SECONDS", 0.0)
    made = offsets(clock, lambda *_: Channel(here))
    assert made.after(0) == 0
    assert clock.pauses == [PAUSE_SECONDS]
    there.close()


def test_the_error_of_no_answer_is_one_to_retry() -> None:
    assert ConnectionLostError.retryable
    assert ControlError.retryable
    assert not ControlKeyError.retryable
