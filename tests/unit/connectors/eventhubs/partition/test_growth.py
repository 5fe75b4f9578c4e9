"""isthmus.connectors.eventhubs.partition.growth."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from isthmus.connectors.eventhubs.partition import growth
from isthmus.connectors.eventhubs.partition.growth import QUERY_SECONDS, PartitionGrowth
from isthmus.errors import ConnectionLostError, IsthmusError

CLIENT: Any = None


class Look:
    """A look whose answer the test gives."""

    made: ClassVar[list[Look]] = []

    def __init__(self, client: Any, hub: str, mark: Callable[[], None], wanted: object) -> None:
        assert wanted == (), "of no partition is anything asked"
        self.partitions: list[int] = []
        self.error: IsthmusError | None = None
        self.is_done = self.is_closed = False
        self.made.append(self)

    def advance(self) -> None:
        pass

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture(name="looks")
def _looks(monkeypatch: pytest.MonkeyPatch) -> list[Look]:
    monkeypatch.setattr(growth, "HubQuery", Look)
    monkeypatch.setattr(Look, "made", [])
    return Look.made


def test_i1_a_look_is_taken_from_time_to_time(looks: list[Look]) -> None:
    watch = PartitionGrowth(lambda: None, is_wanted=True)
    assert watch.added(CLIENT, "hub", {0, 1}, 1e9) == []
    assert (looks, watch.deadline) == ([], math.inf), "nothing is read yet"
    watch.begin(10.0)
    assert watch.deadline == 10.0 + QUERY_SECONDS
    assert watch.added(CLIENT, "hub", {0, 1}, 9.0 + QUERY_SECONDS) == []
    assert looks == []
    for _ in range(3):
        assert watch.added(CLIENT, "hub", {0, 1}, 10.0 + QUERY_SECONDS) == []
    assert len(looks) == 1
    assert watch.deadline == math.inf, "its answer wakes the source"
    looks[0].partitions, looks[0].is_done = [0, 1], True
    assert watch.added(CLIENT, "hub", {0, 1}, 80.0) == []
    assert looks[0].is_closed
    assert watch.deadline == 80.0 + QUERY_SECONDS
    assert watch.added(CLIENT, "hub", {0, 1}, 80.0 + QUERY_SECONDS) == []
    looks[1].partitions, looks[1].is_done = [0, 1, 2, 3], True
    assert watch.added(CLIENT, "hub", {0, 1}, 150.0) == [2, 3]


def test_i1_a_look_that_fails_says_nothing(looks: list[Look]) -> None:
    watch = PartitionGrowth(lambda: None, is_wanted=True)
    watch.begin(0.0)
    watch.added(CLIENT, "hub", {0}, QUERY_SECONDS)
    looks[0].partitions, looks[0].is_done, looks[0].error = [0, 1], True, ConnectionLostError("gone")
    assert watch.added(CLIENT, "hub", {0}, 70.0) == []
    assert watch.deadline == 70.0 + QUERY_SECONDS
    watch.added(CLIENT, "hub", {0}, 70.0 + QUERY_SECONDS)
    watch.close()
    assert looks[1].is_closed
    assert watch.deadline == math.inf


def test_partitions_that_are_not_wanted_are_not_looked_for(looks: list[Look]) -> None:
    watch = PartitionGrowth(lambda: None, is_wanted=False)
    watch.begin(0.0)
    assert watch.deadline == math.inf
    assert watch.added(CLIENT, "hub", {0}, 1e9) == []
    assert looks == []
