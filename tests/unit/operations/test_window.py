"""isthmus.operations.window."""

from __future__ import annotations

from isthmus.operations.window import Pace, Window

MIB = 1 << 20


def test_i1_the_window_follows_what_the_network_carries() -> None:
    window = Window(500, first=20)
    assert window.size == 20
    window.carried(20 << 10, 1.0)
    window.learn([bytes(20 << 10)])
    assert window.size == 12, "so many messages of 20 KiB are a quarter of a MiB, whatever the network carries"
    window.carried(10 * MIB, 1.0)
    window.learn([bytes(20 << 10)])
    assert window.size == 8 * MIB // (20 << 10), "on a fast one, what fits into memory"
    for _ in range(20):
        window.carried(20 << 10, 1.0)
    window.learn([bytes(MIB)])
    assert window.size == 1, "one message alone may take longer"


def test_i2_large_messages_fit_into_memory() -> None:
    window = Window(500, first=20)
    window.carried(1000 * MIB, 1.0)
    window.learn([bytes(MIB)])
    assert window.size == 7
    window.learn([b"small"] * 10)
    assert window.size == 500


def test_the_bytes_that_are_queued_follow_what_the_network_carries() -> None:
    pace = Pace()
    parts = [bytes(MIB // 8)] * 1000
    assert pace.fitting(parts, 0, 0.0) == 2
    assert pace.fitting([bytes(MIB)] * 2, 0, 0.0) == 1, "it would never fit"
    assert pace.fitting(parts, MIB, 0.0) == 0
    assert pace.fitting(parts, MIB // 2, 5.0) == 0
    assert pace.fitting([bytes(MIB)], 1, 50.0) == 0, "something else is in transit"
    assert pace.fitting(parts, 0, 50.0) == 2, "it took long"
    now = 50.0
    for _ in range(20):
        assert pace.fitting(parts, 64 * MIB, now) == 0
        now += 0.1
        pace.fitting(parts, 0, now)
    assert pace.fitting(parts, 0, now) == 64 * 8
