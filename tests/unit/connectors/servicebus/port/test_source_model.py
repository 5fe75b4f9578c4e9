"""A source of Service Bus in a world of faults, by seed; `source_world` tells what is checked."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from isthmus.bridge.lease import event as e
from source_world import SourceWorld, clocks

QUICK = 30
# The network stood still for longer than locks last, just after the connection was made again.
KNOWN = (102,)


def play(seed: int) -> SourceWorld:
    """A while with faults, then without, to the end."""
    random.seed(seed)
    world = SourceWorld(seed)
    with clocks(world):
        world.tell(e.Begin())
        world.run(300.0, 3_000)
        world.calm()
        if seed % 6 == 0 and not world.has_ended:
            world.end()
            assert not world.lease.outstanding
        world.run(2_000.0, 40_000)
    assert world.is_done or world.has_ended, f"it stands still: {world.lease.report(world.now)}"
    if not world.faults:
        assert len(world.accepted) == len(set(world.accepted)), "sent twice without a fault"
    return world


@pytest.mark.parametrize("first", range(0, QUICK, 10))
def test_whatever_happens_a_source_loses_and_stops_nothing(first: int) -> None:
    for seed in range(first, first + 10):
        try:
            play(seed)
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise


@pytest.mark.parametrize("seed", KNOWN)
def test_what_has_happened(seed: int) -> None:
    play(seed)


@pytest.mark.soak
def test_whatever_happens_a_source_loses_and_stops_nothing_for_long(
    long_count: Callable[[int], int], counted: Callable[[str, str], None]
) -> None:
    first, count, moved = random.SystemRandom().randrange(1 << 40), long_count(5_000), 0
    for seed in range(first, first + count):
        try:
            moved += len(play(seed).settled)
        except AssertionError as error:
            counted(f"{count} seeds from {first}", f"broken at {seed}")
            error.add_note(f"seed {seed}")
            raise
    counted(f"{count} seeds from {first}", f"{moved} messages settled, none lost, none stuck")
