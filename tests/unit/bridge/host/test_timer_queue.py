"""Deadlines of many keys."""

from __future__ import annotations

import math

from isthmus.bridge.host.timer_queue import TimerQueue


def test_keys_are_due_in_their_order() -> None:
    timers: TimerQueue[str] = TimerQueue()
    assert timers.first == math.inf
    timers.set("b", 2.0)
    timers.set("a", 1.0)
    timers.set("c", 3.0)
    assert timers.first == 1.0
    assert timers.due(2.0) == ["a", "b"]
    assert timers.due(2.0) == []
    assert timers.first == 3.0


def test_an_earlier_deadline_replaces_a_later_one() -> None:
    timers: TimerQueue[str] = TimerQueue()
    timers.set("a", 5.0)
    timers.set("a", 1.0)
    assert timers.due(1.0) == ["a"]
    assert timers.due(9.0) == []


def test_i2_a_later_deadline_leaves_the_earlier_one() -> None:
    timers: TimerQueue[str] = TimerQueue()
    timers.set("a", 1.0)
    timers.set("a", 5.0)
    assert timers.due(1.0) == ["a"]


def test_a_key_without_a_deadline_is_not_kept() -> None:
    timers: TimerQueue[str] = TimerQueue()
    timers.set("a", math.inf)
    assert timers.first == math.inf
    assert timers.due(1e9) == []
