"""Both machines of a route in a world of faults, by seed; `route_world` describes what is checked."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from harness.world.route_world import World, short_delay
from harness.world.session_world import CrowdedWorld, SessionWorld
from isthmus.bridge.flow.byte_budget import ByteBudget
from isthmus.bridge.host.sender import handle as sender_handle
from isthmus.bridge.lease import event as e
from isthmus.bridge.lease.fence import Fence
from isthmus.bridge.lease.lease import RouteLease

QUICK = 50


@pytest.fixture(autouse=True)
def _by_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender_handle, "_delay_seconds", short_delay)


def play(seed: int, make: Callable[[int], World] = World) -> World:
    """A while with faults, then without, to the end."""
    world = make(seed)
    world.apply(e.Begin())
    world.run(200.0, 2_000)
    if world.has_ended:
        assert world.spec.only_present
        assert world.is_done
        return world
    world.calm()
    if world.spec.only_present:
        world.run(3_000.0, 60_000)
        assert world.has_ended, f"it does not end by itself: {world.lease.report(world.now)}"
        assert world.is_done
    elif seed % 4 == 0:
        world.end()
    else:
        world.run(3_000.0, 60_000)
        assert world.is_done, f"it is stuck: {world.lease.report(world.now)}"
    world.check_copies()
    return world


@pytest.mark.parametrize("first", range(0, QUICK, 10))
def test_whatever_happens_a_route_loses_and_stops_nothing(first: int) -> None:
    for seed in range(first, first + 10):
        try:
            play(seed)
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise


@pytest.mark.parametrize("first", range(0, QUICK, 10))
def test_whatever_happens_a_route_of_sessions_loses_and_stops_nothing(first: int) -> None:
    for seed in range(first, first + 10):
        try:
            play(seed, SessionWorld)
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise


@pytest.mark.parametrize("most", [1, 4])
def test_one_other_message_is_enough_for_all_sessions_that_begin_with_a_refused_one(most: int) -> None:
    """More of them than are kept in one opening: they are given back, and set aside when they come again."""
    world = CrowdedWorld(0, 40, most, 300.0)
    world.apply(e.Begin())
    world.run(299.0, 20_000)
    assert not world.source.settled, "there was nothing to compare with"
    world.run(250.0, 20_000)
    assert world.is_done, f"it is stuck: {world.lease.report(world.now)}"
    assert list(world.source.settled.values()).count("dead-letter") == 40
    assert world.accepted == [41]


def test_while_no_other_message_comes_openings_are_few() -> None:
    world = CrowdedWorld(0, 40, 4, 3_600.0)
    world.apply(e.Begin())
    world.run(3_500.0, 60_000)
    assert not world.source.settled
    assert 40 < world.lease.handle < 75  # one a minute, once it waits 30 s between them


def test_a_route_to_a_slow_target_ends_soon() -> None:
    """All routes of its query wait for its end."""
    world = World(0, 5)
    world.chaos, world.pace, world.limit_bytes, world.eager, world.later = 0.0, 20.0, 0, 1.0, 0
    world.poison, world.large, world.is_disordered = {}, set(), False
    spec = replace(
        world.spec, claim="", rate="", window=16_000, window_bytes=1 << 24, in_flight=12_000, envelope_messages=1
    )
    world.spec = replace(spec, only_present=False, is_strict=False, block_refused=False, steps=())
    world.lease = RouteLease(world.spec, Fence(False, world.now), ByteBudget(), itertools.count(1).__next__)
    world.publish(2_600)
    world.apply(e.Begin())
    world.run(60.0, 60_000)
    assert world.lease.outstanding > 200
    assert len(world.source.settled) > 0.9 * 60 * world.pace
    begun_at = world.now
    world.end()
    assert world.now < begun_at + 30.0


@pytest.mark.soak
def test_whatever_happens_a_route_loses_and_stops_nothing_for_long(
    long_count: Callable[[int], int], counted: Callable[[str, str], None]
) -> None:
    first, count, moved = random.SystemRandom().randrange(1 << 40), long_count(20_000), 0
    for seed in range(first, first + count):
        try:
            moved += len(play(seed).source.settled)
        except AssertionError as error:
            counted(f"{count} seeds from {first}", f"broken at {seed}")
            error.add_note(f"seed {seed}")
            raise
    counted(f"{count} seeds from {first}", f"{moved} messages settled, none lost, none stuck")


@pytest.mark.soak
def test_whatever_happens_a_route_of_sessions_loses_and_stops_nothing_for_long(
    long_count: Callable[[int], int], counted: Callable[[str, str], None]
) -> None:
    first, count = random.SystemRandom().randrange(1 << 40), long_count(5_000)
    for seed in range(first, first + count):
        try:
            play(seed, SessionWorld)
        except AssertionError as error:
            counted(f"{count} seeds from {first}", f"broken at {seed}")
            error.add_note(f"seed {seed}")
            raise
    counted(f"{count} seeds from {first}", "none lost, none stuck")
