"""Where a consumer group begins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from isthmus.connectors.checkpoint.checkpoint import Checkpoint, GroupKey, open_store
from isthmus.connectors.eventhubs.administration import begin_group
from isthmus.connectors.eventhubs.option import HubOptions, read_hub
from isthmus.connectors.eventhubs.partition.address import START_OFFSET
from isthmus.connectors.eventhubs.partition.look import PartitionView

KEY = GroupKey("identity", "host", "planes", "isthmus")


class Hubs:
    """Partitions, as they are told."""

    def __init__(self, *views: PartitionView) -> None:
        self._views = dict(enumerate(views))

    def views(self, hub: str) -> dict[int, PartitionView]:
        return self._views

    def group(self, hub: str, group: str) -> GroupKey:
        return KEY


@pytest.fixture
def options(tmp_path: Path) -> HubOptions:
    return read_hub({"connection": "env:NONE", "checkpoints": str(tmp_path)})


def begun(options: HubOptions, *views: PartitionView, from_end: bool) -> dict[int, Checkpoint]:
    hubs: Any = Hubs(*views)
    begin_group(options, hubs, "planes", "isthmus", from_end=from_end)
    return open_store(options).load(KEY)


@pytest.mark.parametrize("from_end", [False, True])
def test_i1_what_an_event_hub_of_the_same_name_has_left_is_replaced(options: HubOptions, from_end: bool) -> None:
    """Otherwise the first 5,000 events of the new one would be passed over, were they there before a run reads it."""
    open_store(options).write(KEY, {0: Checkpoint(5_000, "777"), 1: Checkpoint(2, "9")})
    found = begun(options, PartitionView(0, -1, "", True), PartitionView(0, 3, "50", False), from_end=from_end)
    assert found[0] == Checkpoint(-1, START_OFFSET)
    assert found[1] == (Checkpoint(3, "50") if from_end else Checkpoint(-1, START_OFFSET))


def test_a_group_begins_at_the_end_or_before_the_first_event(options: HubOptions) -> None:
    view = PartitionView(10, 30, "500", False)
    assert begun(options, view, from_end=False) == {0: Checkpoint(9, START_OFFSET)}
    assert begun(options, view, from_end=True) == {0: Checkpoint(30, "500")}
