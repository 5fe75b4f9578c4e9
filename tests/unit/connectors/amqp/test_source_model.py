"""A source of a broker under random faults, by seed; `amqp_source_world` lists the checks."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from harness.world.amqp_source_world import AmqpWorld
from harness.world.route_world import short_delay
from isthmus.bridge.host.sender import handle as sender_handle
from isthmus.bridge.lease import event as e
from isthmus.connectors.amqp import source as amqp_source
from isthmus.connectors.amqp.position import Positions
from isthmus.connectors.servicebus.port import end as end_module

QUICK = 30
_WALL_SECONDS = 1_750_000_000.0


def play(seed: int, monkeypatch: pytest.MonkeyPatch) -> AmqpWorld:
    """A while with faults, then without, to the end."""
    world = AmqpWorld(seed)
    clock = SimpleNamespace(monotonic=lambda: world.now, time=lambda: world.now + _WALL_SECONDS)
    monkeypatch.setattr(sender_handle, "_delay_seconds", short_delay)
    monkeypatch.setattr(amqp_source, "time", clock)
    monkeypatch.setattr(end_module, "time", clock)
    monkeypatch.setattr(amqp_source, "_POSITIONS", Positions(clock.time))
    world.apply(e.Begin())
    world.run(200.0, 2_000)
    if not world.has_ended:
        world.calm()
        if seed % 4 == 0 and not world.spec.only_present:
            world.end()
        else:
            world.run(3_000.0, 60_000)
            assert world.is_done, f"it is stuck: {world.lease.report(world.now)}"
            assert world.has_ended or not world.spec.only_present, "it does not end by itself"
    if world.has_ended:
        world.leave()
    world.check_copies()
    return world


@pytest.mark.parametrize("first", range(0, QUICK, 10))
def test_whatever_a_broker_does_nothing_is_lost_or_stuck(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(first, first + 10):
        try:
            play(seed, monkeypatch)
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise


@pytest.mark.soak
def test_whatever_a_broker_does_nothing_is_lost_or_stuck_for_long(
    monkeypatch: pytest.MonkeyPatch, long_count: Callable[[int], int], counted: Callable[[str, str], None]
) -> None:
    first, count, moved = random.SystemRandom().randrange(1 << 40), long_count(5_000), 0
    for seed in range(first, first + count):
        try:
            moved += len(play(seed, monkeypatch).source.settled)
        except AssertionError as error:
            counted(f"{count} seeds from {first}", f"broken at {seed}")
            error.add_note(f"seed {seed}")
            raise
    counted(f"{count} seeds from {first}", f"{moved} messages settled, none lost, none stuck")
