from __future__ import annotations

import pytest

from isthmus.clock import Clock
from isthmus.testing.clock import ManualClock


def test_time_does_not_pass_until_it_is_advanced() -> None:
    clock: Clock = (manual := ManualClock(wall_ms=5_000, monotonic_seconds=1.0))
    assert (clock.wall_ms(), clock.monotonic()) == (5_000, 1.0)
    manual.advance(250)
    assert (clock.wall_ms(), clock.monotonic()) == (5_250, 1.25)


def test_only_the_wall_goes_back() -> None:
    clock = ManualClock(wall_ms=5_000, monotonic_seconds=1.0)
    clock.set_wall(1_000)
    assert (clock.wall_ms(), clock.monotonic()) == (1_000, 1.0)
    with pytest.raises(ValueError, match="does not go back"):
        clock.advance(-1)
