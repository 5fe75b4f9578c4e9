"""What a slow connection does to bytes, without sockets or sleeps."""

from __future__ import annotations

import math

from isthmus.testing.delay_line import DelayLine, Weather


def test_a_delay_keeps_bytes_back_and_limits_no_throughput_i2() -> None:
    line = DelayLine(Weather(delay_seconds=0.1))
    for n in range(1000):
        line.add(b"%d," % n, 1.0)
    assert line.take(1.09) == []
    assert b"".join(line.take(1.1)) == b"".join(b"%d," % n for n in range(1000))
    assert line.due() == math.inf


def test_jitter_changes_no_order_i1() -> None:
    line = DelayLine(Weather(delay_seconds=0.1, jitter_seconds=0.2), seed=7)
    pieces = [b"%d" % n for n in range(100)]
    for n, piece in enumerate(pieces):
        line.add(piece, n / 1000)
    found: list[bytes] = []
    times: list[float] = []
    while line:
        due = line.due()
        times.append(due)
        found += line.take(due)
    assert found == pieces
    assert times == sorted(times)
    assert times[0] >= 0.1
    assert 0.2 < times[-1] <= 0.1 + 0.2 + 0.099


def test_bandwidth_is_what_it_is_set_to() -> None:
    line = DelayLine(Weather(bytes_per_second=1000.0, delay_seconds=0.5))
    line.add(bytes(500), 0.0)
    line.add(bytes(500), 0.0)
    assert line.due() == 1.0
    assert [len(piece) for piece in line.take(1.0)] == [500]
    assert line.due() == 1.5


def test_it_is_full_at_its_bound_i3() -> None:
    line = DelayLine(Weather(delay_seconds=1.0, buffer_bytes=100))
    line.add(bytes(99), 0.0)
    assert line.has_room
    line.add(bytes(99), 0.0)
    assert not line.has_room
    line.take(1.0)
    assert line.has_room


def test_stalled_nothing_comes_out_until_it_is_no_longer() -> None:
    line = DelayLine(Weather(is_stalled=True))
    line.add(b"a", 0.0)
    assert (line.take(100.0), line.due()) == ([], math.inf)
    line.weather = Weather()
    assert line.take(100.0) == [b"a"]
