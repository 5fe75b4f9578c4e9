"""A route into an archive: two parts with one outcome."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from isthmus.replication.archive.route import ArchiveRoute
from isthmus.replication.query.route_progress import RouteProgress


@dataclass
class Part:
    """Either of the two, as a test sets it."""

    active: bool = True
    why: str = ""
    everything: bool = False
    asked: list[str] = field(default_factory=list)

    def is_active(self) -> bool:
        return self.active

    def failure(self) -> str:
        return self.why

    def has_all(self) -> bool:
        return self.everything

    def progress(self) -> RouteProgress:
        return RouteProgress(ready=True)

    def drain(self) -> None:
        self.asked.append("drain")

    def drained(self) -> bool:
        return "drain" in self.asked

    def stop(self) -> None:
        self.asked.append("stop")


def test_it_runs_while_both_do() -> None:
    assert ArchiveRoute(Part(), Part()).is_active()


@pytest.mark.parametrize("failing", [0, 1])
def test_i1_it_has_failed_when_one_has(failing: int) -> None:
    parts = [Part(), Part()]
    parts[failing] = Part(active=False, why="broken")
    route = ArchiveRoute(*parts)
    assert not route.is_active()
    assert route.failure() == "broken"


def test_i2_a_run_with_an_end_ends_when_the_table_has_everything() -> None:
    filling, emptying = Part(active=False), Part()
    route = ArchiveRoute(filling, emptying)
    assert route.is_active()
    emptying.everything = True
    assert not route.is_active()
    assert route.failure() == ""


def test_it_is_drained_when_nothing_is_between_source_and_spool() -> None:
    filling, emptying = Part(), Part()
    route = ArchiveRoute(filling, emptying)
    assert not route.drained()
    route.drain()
    assert route.drained()
    route.stop()
    assert filling.asked == ["drain", "stop"]
    assert emptying.asked == ["stop"]
