"""Routes that share processes and divert messages, in a world of faults, by seed; `shared_world` describes what is checked."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from harness.world.route_world import short_delay
from harness.world.shared_world import SharedWorld
from isthmus.bridge.host.sender import handle as sender_handle

QUICK = 40


@pytest.fixture(autouse=True)
def _by_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender_handle, "_delay_seconds", short_delay)


def play(seed: int) -> SharedWorld:
    """A while with faults, then without, to the end."""
    world = SharedWorld(seed)
    world.run(200.0, 2_000)
    if seed % 4 == 0:
        world.calm()
        world.end()
        world.check_copies()
        return world
    if seed % 4 == 1:  # one entity stays unavailable: the routes that do not lead there continue
        away = world.choose.choice(list(world.entities))
        world.calm([away])
        world.wait_settled([name for name, spec in world.specs.items() if away not in (f"{name}/to", *spec.diverts)])
    world.calm()
    world.wait_settled(list(world.specs))
    world.settle_down()
    world.check_copies()
    return world


@pytest.mark.parametrize("first", range(0, QUICK, 10))
def test_whatever_happens_routes_that_share_and_divert_lose_and_stop_nothing(first: int) -> None:
    for seed in range(first, first + 10):
        try:
            play(seed)
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise


@pytest.mark.soak
def test_whatever_happens_routes_that_share_and_divert_lose_and_stop_nothing_for_long(
    long_count: Callable[[int], int], counted: Callable[[str, str], None]
) -> None:
    first, count, moved = random.SystemRandom().randrange(1 << 40), long_count(10_000), 0
    for seed in range(first, first + count):
        try:
            moved += sum(len(queue.settled) for queue in play(seed).queues.values())
        except AssertionError as error:
            counted(f"{count} seeds from {first}", f"broken at {seed}")
            error.add_note(f"seed {seed}")
            raise
    counted(f"{count} seeds from {first}", f"{moved} messages settled, none lost, none stuck")
