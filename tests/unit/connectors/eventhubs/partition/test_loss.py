"""Events that are lost unread are reported once."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, cast

import pytest

from isthmus.connectors.eventhubs.partition import loss
from isthmus.connectors.eventhubs.partition.address import Begin
from isthmus.connectors.eventhubs.partition.loss import Losses
from isthmus.connectors.eventhubs.partition.opening import Opening
from isthmus.errors import ConnectionLostError, OperationTimeoutError


def losses(gaps: dict[int, list[tuple[int, int]]] | None = None) -> Losses:
    return Losses(lambda: "hub", cast("Any", SimpleNamespace(gaps=gaps or {})), lambda: None)


def test_i1_what_an_opening_finds_lost_fails_it_once() -> None:
    made = losses()
    openings = {0: Opening(Begin(8), lost=(3, 7)), 1: Opening(Begin(), begins_again=True), 2: Opening(Begin(4))}
    with pytest.raises(ConnectionLostError, match=r"partition 0: events 3 to 7 .*; partition 1: .* created again"):
        made.check_openings(openings)
    made.check_openings(openings)
    with pytest.raises(ConnectionLostError, match="events 8 to 9"):
        made.check_openings({0: Opening(Begin(10), lost=(8, 9))})


def test_i1_a_partition_that_is_known_to_be_made_again_fails_no_opening() -> None:
    made = losses()
    made.knows_of_remake(1)
    made.check_openings({1: Opening(Begin(), begins_again=True)})


class Look:
    """A look whose answers a test gives."""

    def __init__(self, begins: dict[int, int]) -> None:
        self.begins = begins
        self.is_done, self.error = True, None

    def __call__(self, _client: object, _path: str, _mark: object, wanted: set[int]) -> Look:
        self.views = {each: SimpleNamespace(begin=self.begins[each]) for each in wanted}
        return self

    def advance(self) -> None:
        pass

    close = advance


@pytest.fixture
def query(monkeypatch: pytest.MonkeyPatch) -> Look:
    made = Look({0: 8, 1: 0})
    monkeypatch.setattr(loss, "HubQuery", made)
    return made


CLIENT = cast("Any", None)


@pytest.mark.usefixtures("query")
def test_i1_a_gap_is_reported_once_where_the_retention_has_removed_it() -> None:
    gaps = {0: [(3, 10)], 1: [(5, 6)]}
    made = losses(gaps)
    made.query(CLIENT, 0.0)
    with pytest.raises(ConnectionLostError, match="partition 0: events 3 to 7 were removed by the retention"):
        made.query(CLIENT, 0.0)
    gaps[0] = [(3, 10)]  # the same gap, after the connection was made again
    made.query(CLIENT, 0.0)
    made.query(CLIENT, 0.0)
    assert gaps == {}


def test_i1_a_gap_that_comes_during_a_look_is_looked_at_by_the_next(query: Look) -> None:
    gaps = {0: [(3, 10)]}
    made = losses(gaps)
    query.is_done = False
    made.query(CLIENT, 0.0)
    gaps[0].append((20, 31))  # after what the answer under way contains
    query.is_done = True
    with pytest.raises(ConnectionLostError, match="events 3 to 7"):
        made.query(CLIENT, 0.0)
    assert gaps == {0: [(20, 31)]}
    query.begins[0] = 31
    made.query(CLIENT, 0.0)
    with pytest.raises(ConnectionLostError, match="events 20 to 30"):
        made.query(CLIENT, 0.0)
    assert gaps == {}


@pytest.mark.usefixtures("query")
def test_i1_all_gaps_of_a_partition_are_reported() -> None:
    made = losses({0: [(1, 3), (5, 9)]})
    made.query(CLIENT, 0.0)
    with pytest.raises(ConnectionLostError, match=r"events 1 to 2 .*; partition 0: events 5 to 7"):
        made.query(CLIENT, 0.0)


def test_i1_what_a_look_has_found_is_reported_though_it_failed_for_another_partition(query: Look) -> None:
    query.error = ConnectionLostError("partition 1: no answer")
    made = losses({0: [(3, 10)]})
    made.query(CLIENT, 0.0)
    with pytest.raises(ConnectionLostError, match="events 3 to 7"):
        made.query(CLIENT, 0.0)


def test_a_look_without_an_answer_fails(query: Look) -> None:
    """Nothing behind the gap is kept before the answer."""
    query.is_done = False
    made = losses({0: [(3, 10)]})
    made.query(CLIENT, 100.0)
    assert made.deadline == 100.0 + loss.QUERY_SECONDS
    made.query(CLIENT, 101.0)
    with pytest.raises(OperationTimeoutError):
        made.query(CLIENT, made.deadline)
    assert made.deadline == math.inf
