"""No message is lost, doubled, reordered or stuck, whatever fails: see `conservation`."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.world.conservation import World
from harness.world.wide_world import WideWorld
from harness.world.wider_world import WiderWorld

STEPS_AT_ONCE = 250
WORLDS = 100


@pytest.fixture(autouse=True)
def small_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Topics copy little at a time, so that messages wait to be copied when something fails."""
    for name, value in {"SENT_UNITS": 3, "SLICE_UNITS": 2, "SLICES": 2}.items():
        monkeypatch.setattr(f"isthmus.entities.topic.fan_out.{name}", value)


@pytest.mark.parametrize(
    ("partitioned", "on_disk", "most"),
    [(False, False, WORLDS), (True, False, WORLDS), (False, True, WORLDS // 4), (True, True, WORLDS // 4)],
    ids=["one store", "several stores", "one store on a disk", "several stores on a disk"],
)
def test_what_was_acknowledged_is_there_once(
    partitioned: bool,
    on_disk: bool,
    most: int,
    tmp_path: Path,
    long_count: Callable[[int], int],
    counted: Callable[[str, str], None],
    request: pytest.FixtureRequest,
) -> None:
    """I1 to I4. A failure names its seed, by which it is played again."""
    first = random.SystemRandom().randrange(1 << 32) if request.config.getoption("--soak") else 1
    worlds = long_count(most)
    done = 0
    for seed in range(first, first + worlds):
        world = World(seed, partitioned=partitioned, folder=tmp_path / str(seed) if on_disk else None)
        try:
            for _ in range(2):
                for _ in range(STEPS_AT_ONCE):
                    world.step()
                world.check()
        except BaseException as error:
            error.add_note(f"seed {seed}, after {dict(world.operations)}")
            raise
        done += world.operations.total()
        if on_disk:
            world.engine.close()
            world.main.close()
            shutil.rmtree(tmp_path / str(seed))
    counted(f"{worlds} namespaces", f"{done} operations, seeds from {first}")


@pytest.mark.parametrize("partitioned", [False, True], ids=["one store", "several stores"])
def test_states_settings_and_bodies_are_as_they_were_acknowledged(
    partitioned: bool,
    tmp_path: Path,
    long_count: Callable[[int], int],
    counted: Callable[[str, str], None],
    request: pytest.FixtureRequest,
) -> None:
    """I1 to I7."""
    first = random.SystemRandom().randrange(1 << 32) if request.config.getoption("--soak") else 1
    worlds = long_count(WORLDS)
    done = 0
    for seed in range(first, first + worlds):
        world = WideWorld(seed, tmp_path / str(seed), partitioned=partitioned)
        try:
            for _ in range(2):
                for _ in range(STEPS_AT_ONCE):
                    world.step()
                world.check()
        except BaseException as error:
            error.add_note(f"seed {seed}, after {dict(world.operations)}")
            raise
        done += world.operations.total()
    counted(f"{worlds} namespaces", f"{done} operations, seeds from {first}")


@pytest.mark.parametrize("partitioned", [False, True], ids=["one store", "several stores"])
def test_what_comes_and_goes_is_accounted_for_also_in_back_ups(
    partitioned: bool,
    tmp_path: Path,
    long_count: Callable[[int], int],
    counted: Callable[[str, str], None],
    request: pytest.FixtureRequest,
) -> None:
    """I1 to I8."""
    first = random.SystemRandom().randrange(1 << 32) if request.config.getoption("--soak") else 1
    worlds = long_count(WORLDS)
    done = restored = 0
    for seed in range(first, first + worlds):
        world = WiderWorld(seed, tmp_path / str(seed), partitioned=partitioned)
        try:
            for _ in range(STEPS_AT_ONCE):
                world.step()
            world.check()
            for _ in range(STEPS_AT_ONCE):
                world.step()
            restored += world.restore()
            world.check()
        except BaseException as error:
            error.add_note(f"seed {seed}, after {dict(world.operations)}")
            raise
        done += world.operations.total()
    counted(f"{worlds} namespaces", f"{done} operations, {restored} back-ups restored, seeds from {first}")
