"""What the openings of a route know of messages that its target has refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from isthmus.bridge import refusal_memory
from isthmus.bridge.refusal_memory import KEPT_SECONDS, RefusalMemories, RefusalMemory, RefusalRecord
from isthmus.bridge.route_spec import End, RouteSpec

SPEC = RouteSpec(name="r", source=End("servicebus", "west"), target=End("servicebus", "east"))
RECORD = RefusalRecord(0.0, 1, 2)


def test_only_so_many_are_remembered_and_those_refused_last_i1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusal_memory, "MOST_RECORDS", 3)
    memory = RefusalMemory()
    for position in (1, 2, 3, 1, 4):
        memory.keep((position, 0), RECORD, float(position))
    assert [position for position in range(6) if memory.recall((position, 0), 5.0)] == [1, 3, 4]


def test_what_was_not_refused_for_long_begins_anew_i2() -> None:
    memory = RefusalMemory()
    memory.keep((1, 0), RECORD, 5.0)
    assert memory.recall((1, 0), KEPT_SECONDS + 4.0) == RECORD
    assert memory.recall((1, 0), KEPT_SECONDS + 5.0) is None
    memory.keep((2, 0), RECORD, KEPT_SECONDS + 5.0)
    memory.forget((2, 0))
    assert not memory


def test_what_is_forgotten_is_not_known() -> None:
    memory = RefusalMemory()
    memory.keep((1, 7), RECORD, 0.0)
    assert memory.recall((1, 8), 0.0) is None
    memory.forget((1, 8))
    assert memory.recall((1, 7), 0.0) == RECORD
    memory.forget((1, 7))
    assert memory.recall((1, 7), 0.0) is None


def test_each_target_of_a_route_has_its_own_i3() -> None:
    memories = RefusalMemories()
    found = memories.of(SPEC)
    found.keep((1, 0), RECORD, 0.0)
    for other in (
        memories.of(replace(SPEC, name="s")),
        memories.of(SPEC, "audit"),
    ):
        assert not other
    memories.closed(SPEC)
    assert memories.of(SPEC) is found
    for moved in (replace(SPEC, target=End("servicebus", "south")), replace(SPEC, source=End("servicebus", "north"))):
        assert not memories.of(moved)
        memories.of(SPEC)


def test_where_nothing_is_refused_nothing_is_kept() -> None:
    memories = RefusalMemories()
    found = memories.of(SPEC)
    found.keep((1, 0), RECORD, 0.0)
    found.forget((1, 0))
    memories.closed(SPEC)
    memories.closed(SPEC)
    assert memories.of(SPEC) is not found
