"""A source of Service Bus, and one of another AMQP 1.0 broker, under random faults, by seed; `source_world` lists the checks."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from harness.world.source_world import SourceWorld, clocks
from isthmus.bridge.lease import event as e

QUICK = 30
# Looks at gaps that took longer than locks last.
KNOWN = (5083, 5107, 5120)


def play(seed: int, *, is_plain: bool) -> SourceWorld:
    """A while with faults, then without, to the end."""
    random.seed(seed)
    world = SourceWorld(seed, is_plain=is_plain)
    with clocks(world):
        world.apply(e.Begin())
        world.run(300.0, 3_000)
        world.calm()
        if seed % 6 == 0 and not world.has_ended:
            world.end()
            assert not world.lease.outstanding
        world.run(2_000.0, 40_000)
    assert world.is_done or world.has_ended, f"it is stuck: {world.lease.report(world.now)}"
    if not world.faults or (is_plain and not world.failed):
        assert len(world.accepted) == len(set(world.accepted)), (
            "sent twice though nothing failed that was not made good"
        )
    return world


@pytest.mark.parametrize("is_plain", [False, True], ids=["servicebus", "amqp"])
@pytest.mark.parametrize("first", range(0, QUICK, 10))
def test_whatever_happens_a_source_loses_and_stops_nothing(first: int, is_plain: bool) -> None:
    for seed in range(first, first + 10):
        try:
            play(seed, is_plain=is_plain)
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise


@pytest.mark.parametrize("seed", KNOWN)
def test_what_has_happened(seed: int) -> None:
    play(seed, is_plain=False)


@pytest.mark.soak
def test_whatever_happens_a_source_loses_and_stops_nothing_for_long(
    long_count: Callable[[int], int], counted: Callable[[str, str], None]
) -> None:
    first, count, moved = random.SystemRandom().randrange(1 << 40), long_count(5_000), 0
    for seed in range(first, first + count):
        try:
            moved += len(play(seed, is_plain=seed % 4 == 0).settled)
        except AssertionError as error:
            counted(f"{count} seeds from {first}", f"broken at {seed}")
            error.add_note(f"seed {seed}")
            raise
    counted(f"{count} seeds from {first}", f"{moved} messages settled, none lost, none stuck")
