"""The start of a consumer group."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from isthmus.connectors.checkpoint.checkpoint import Checkpoint, GroupKey, open_store
from isthmus.connectors.checkpoint.folder_store import FolderStore
from isthmus.connectors.eventhubs.administration import EventHubsAdministration, begin_group
from isthmus.connectors.eventhubs.option import HubOptions, read_hub
from isthmus.connectors.eventhubs.partition.address import START_OFFSET
from isthmus.connectors.eventhubs.partition.hub_query import PartitionView
from isthmus.topology.state import GroupState, LogState

KEY = GroupKey("identity", "host", "planes", "isthmus")


class Hubs:
    """Partitions, as they are reported."""

    def __init__(self, *views: PartitionView) -> None:
        self._views = dict(enumerate(views))

    def query(self, hub: str) -> Any:
        return SimpleNamespace(views=self._views, created_ms=7)

    def views(self, hub: str) -> dict[int, PartitionView]:
        return self._views

    def identity(self) -> str:
        return "identity"

    def group(self, hub: str, group: str) -> GroupKey:
        return KEY


@pytest.fixture
def options(tmp_path: Path) -> HubOptions:
    return read_hub({"connection": "env:NONE", "checkpoints": str(tmp_path)})


def begun(options: HubOptions, *views: PartitionView, from_end: bool) -> dict[int, Checkpoint]:
    hubs: Any = Hubs(*views)
    begin_group(options, hubs, "planes", "isthmus", from_end=from_end)
    kept = open_store(options).load(KEY)
    assert {each.created_ms for each in kept.values()} == {7}
    return {number: each._replace(created_ms=0) for number, each in kept.items()}


@pytest.mark.parametrize("from_end", [False, True])
def test_i1_what_an_event_hub_of_the_same_name_has_left_is_replaced(options: HubOptions, from_end: bool) -> None:
    """Otherwise the first 5,000 events of the new one would be passed over, were they there before a run reads it."""
    open_store(options).write(KEY, {0: Checkpoint(5_000, "777"), 1: Checkpoint(2, "9")})
    found = begun(options, PartitionView(0, -1, "-1", True), PartitionView(0, 3, "50", False), from_end=from_end)
    assert found[0] == Checkpoint(-1, START_OFFSET)
    assert found[1] == (Checkpoint(3, "50") if from_end else Checkpoint(-1, START_OFFSET))


@pytest.mark.parametrize(
    ("from_end", "expected"), [(False, Checkpoint(9, START_OFFSET)), (True, Checkpoint(30, "500"))]
)
def test_a_group_begins_at_the_end_or_before_the_first_event(
    options: HubOptions, from_end: bool, expected: Checkpoint
) -> None:
    assert begun(options, PartitionView(10, 30, "500", False), from_end=from_end) == {0: expected}


@pytest.mark.parametrize("kept", [{}, {2: Checkpoint(4, "9", created_ms=7)}])
def test_i1_a_group_that_was_made_in_part_is_made_whole(
    options: HubOptions, kept: dict[int, Checkpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`apply` was killed between two checkpoints: partitions without one were read from their first event, whatever `start` said."""
    written: list[int] = []
    write = FolderStore.write

    def one_by_one(store: FolderStore, key: GroupKey, checkpoints: dict[int, Checkpoint]) -> None:
        written.extend(checkpoints)
        write(store, key, checkpoints)

    monkeypatch.setattr(FolderStore, "write", one_by_one)
    open_store(options).write(KEY._replace(created_ms=7), kept)
    view = PartitionView(0, 9, "90", False)
    hubs: Any = Hubs(view, view, view)
    wanted = LogState(name="planes", groups=(GroupState(name="isthmus", start="now"),))
    administration = EventHubsAdministration(options, hubs)
    observed = administration.observe("a", [wanted]).log("planes")
    assert observed is not None
    assert not observed.has_group("isthmus")
    written.clear()
    missing = [number for number in (2, 1, 0) if number not in kept]
    end = dict.fromkeys(missing, Checkpoint(9, "90"))
    stays = {number: each._replace(created_ms=0) for number, each in kept.items()}
    assert begun(options, view, view, view, from_end=True) == end | stays, "what exists is not passed over"
    assert written == missing
    observed = administration.observe("a", [wanted]).log("planes")
    assert observed is not None
    assert observed.has_group("isthmus")


def test_a_group_that_another_client_has_begun_is_there(options: HubOptions) -> None:
    """The vendor's SDKs keep no checkpoint of a partition of which nothing has been read."""
    open_store(options).write(KEY, {2: Checkpoint(4, "9")})
    view = PartitionView(0, 9, "90", False)
    hubs: Any = Hubs(view, view, view)
    wanted = LogState(name="planes", groups=(GroupState(name="isthmus", start="now"),))
    observed = EventHubsAdministration(options, hubs).observe("a", [wanted]).log("planes")
    assert observed is not None
    assert observed.has_group("isthmus")
