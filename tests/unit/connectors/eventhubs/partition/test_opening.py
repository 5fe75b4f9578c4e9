"""isthmus.connectors.eventhubs.partition.opening and .address."""

from __future__ import annotations

import pytest

from isthmus.connectors.checkpoint.checkpoint import Checkpoint
from isthmus.connectors.eventhubs.partition.address import Begin
from isthmus.connectors.eventhubs.partition.hub_query import PartitionView
from isthmus.connectors.eventhubs.partition.opening import Opening, distinct_created_ms, opening, remade

VIEW = PartitionView(100, 199, "9900")


@pytest.mark.parametrize(
    ("view", "checkpoint", "delivered", "start", "expected"),
    [
        pytest.param(VIEW, None, -1, "earliest", Opening(Begin()), id="nothing is known"),
        pytest.param(
            VIEW,
            None,
            -1,
            "latest",
            Opening(Begin(200, "9900"), Checkpoint(199, "9900")),
            id="from the end, which is kept",
        ),
        pytest.param(
            PartitionView(0, -1, "-1", True),
            None,
            -1,
            "latest",
            Opening(Begin(), Checkpoint(-1, "-1")),
            id="I4 the end is the beginning",
        ),
        pytest.param(
            PartitionView(0, 4, "44"),
            Checkpoint(-1, "-1"),
            -1,
            "latest",
            Opening(Begin(0, "-1")),
            id="I4 what came before the next reader",
        ),
        pytest.param(
            PartitionView(3, 4, "44"),
            Checkpoint(-1, "-1"),
            -1,
            "latest",
            Opening(Begin(3), lost=(0, 2)),
            id="I4 what is gone before the next reader",
        ),
        pytest.param(
            VIEW, Checkpoint(149, "1:2:3"), -1, "earliest", Opening(Begin(150, "1:2:3")), id="behind a checkpoint"
        ),
        pytest.param(
            VIEW, Checkpoint(-1, "77"), -1, "earliest", Opening(Begin(-1, "77")), id="only an offset is known"
        ),
        pytest.param(VIEW, Checkpoint(199, ""), -1, "earliest", Opening(Begin(200)), id="everything is done with"),
        pytest.param(VIEW, Checkpoint(120, "5"), 170, "earliest", Opening(Begin(170)), id="I1"),
        pytest.param(VIEW, Checkpoint(49, "5"), -1, "earliest", Opening(Begin(100), lost=(50, 99)), id="I2"),
        pytest.param(VIEW, None, 50, "earliest", Opening(Begin(100), lost=(50, 99)), id="I2 while reading"),
        pytest.param(
            PartitionView(200, 199, "", True),
            Checkpoint(149),
            -1,
            "earliest",
            Opening(Begin(200), lost=(150, 199)),
            id="I2 everything is gone",
        ),
        pytest.param(
            PartitionView(200, 199, "", True),
            Checkpoint(199),
            -1,
            "earliest",
            Opening(Begin(200)),
            id="gone, but done with",
        ),
        pytest.param(VIEW, Checkpoint(500, "5"), -1, "earliest", Opening(Begin(), begins_again=True), id="I3"),
        pytest.param(
            PartitionView(0, -1, "-1", True), None, 7, "earliest", Opening(Begin(), begins_again=True), id="I3 empty"
        ),
    ],
)
def test_opening(
    view: PartitionView, checkpoint: Checkpoint | None, delivered: int, start: str, expected: Opening
) -> None:
    assert opening(view, checkpoint, delivered, start) == expected


@pytest.mark.parametrize(
    ("created_ms", "known_ms", "expected"),
    [
        pytest.param(7, 0, {1}, id="by its checkpoint"),
        pytest.param(7, 5, {0, 1, 2}, id="by what was read"),
        pytest.param(7, 7, set(), id="what was read counts, whatever is kept"),
        pytest.param(0, 5, set(), id="not reported"),
    ],
)
def test_i3_an_event_hub_that_was_made_at_another_time_is_another_one(
    created_ms: int, known_ms: int, expected: set[int]
) -> None:
    kept = {0: Checkpoint(149, "1"), 1: Checkpoint(149, "1", created_ms=5), 2: Checkpoint(149, "1", created_ms=7)}
    assert remade(range(3), created_ms, known_ms, kept) == expected


def test_regions_of_a_namespace_may_report_other_times() -> None:
    empty = PartitionView(0, -1, "-1", True)
    assert distinct_created_ms(7, [VIEW, empty]) == 7
    assert distinct_created_ms(7, [VIEW._replace(last_offset="1:2:9900"), empty]) == 0


@pytest.mark.parametrize(
    ("begin", "selector"),
    [
        (Begin(), "amqp.annotation.x-opt-offset > '-1'"),
        (Begin(7), "amqp.annotation.x-opt-sequence-number >= '7'"),
        (Begin(7, "1:23:4"), "amqp.annotation.x-opt-offset > '1:23:4'"),
    ],
)
def test_selectors(begin: Begin, selector: str) -> None:
    assert begin.selector == selector
