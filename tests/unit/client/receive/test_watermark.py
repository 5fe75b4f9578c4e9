"""The enqueued time up to which every message is handled."""

from __future__ import annotations

import random

from isthmus.client.receive import watermark
from isthmus.client.receive.watermark import Watermark


def test_it_follows_what_is_handled() -> None:
    mark = Watermark()
    assert mark.at_ms == 0
    mark.arrived("a", 100)
    assert mark.at_ms == 0
    mark.handled("a")
    assert mark.at_ms == 100


def test_it_stays_below_what_arrived_and_is_not_handled() -> None:
    """W1: a failed message may come again at the other namespace alone."""
    mark = Watermark()
    mark.arrived("failed", 100)
    mark.arrived("b", 200)
    mark.handled("b")
    assert mark.at_ms == 100
    mark.arrived("failed", 100)  # it came again
    mark.handled("failed")
    assert mark.at_ms == 200


def test_a_late_message_brings_it_back() -> None:
    mark = Watermark(500)
    mark.arrived("late", 300)
    assert mark.at_ms == 300
    mark.handled("late")
    assert mark.at_ms == 500
    mark.handled("unknown")
    assert mark.at_ms == 500


def test_whatever_happens_it_is_below_all_that_is_not_handled() -> None:
    """W1, also when more is open than it remembers (W2)."""
    chance = random.Random(5)
    watermark_limit = watermark._REMEMBERED
    watermark._REMEMBERED = 20
    try:
        mark, unhandled = Watermark(), dict[int, int]()
        for number in range(2000):
            if chance.random() < 0.55 or not unhandled:
                unhandled[number] = number * 10 + chance.randrange(50)
                mark.arrived(number, unhandled[number])
            else:
                done = chance.choice(list(unhandled))
                del unhandled[done]
                mark.handled(done)
            assert mark.at_ms <= min(unhandled.values(), default=1 << 60)
            assert len(mark._open) <= 20
    finally:
        watermark._REMEMBERED = watermark_limit
