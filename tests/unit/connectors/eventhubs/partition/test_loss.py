"""What an event hub has lost unread is told once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from isthmus.connectors.eventhubs.partition import loss
from isthmus.connectors.eventhubs.partition.address import Begin
from isthmus.connectors.eventhubs.partition.loss import Losses
from isthmus.connectors.eventhubs.partition.opening import Opening
from isthmus.errors import ConnectionLostError


def losses(gaps: dict[int, list[tuple[int, int]]] | None = None) -> Losses:
    return Losses("hub", cast("Any", SimpleNamespace(gaps=gaps or {})), lambda: None)


def test_i1_what_an_opening_finds_lost_fails_it_once() -> None:
    made = losses()
    openings = {0: Opening(Begin(8), lost=(3, 7)), 1: Opening(Begin(), begins_again=True), 2: Opening(Begin(4))}
    with pytest.raises(ConnectionLostError, match=r"partition 0: events 3 to 7 .*; partition 1: .* made again"):
        made.check_openings(openings)
    made.check_openings(openings)
    with pytest.raises(ConnectionLostError, match="events 8 to 9"):
        made.check_openings({0: Opening(Begin(10), lost=(8, 9))})


def test_i1_a_partition_that_is_known_to_be_made_again_fails_no_opening() -> None:
    made = losses()
    made.knows_of_remake(1)
    made.check_openings({1: Opening(Begin(), begins_again=True)})


def test_i1_a_gap_is_told_once_where_the_retention_has_removed_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Look:
        is_done, error = True, None

        def __init__(self, *_: object) -> None:
            self.views = {0: SimpleNamespace(begin=8), 1: SimpleNamespace(begin=0)}

        def advance(self) -> None:
            pass

        close = advance

    monkeypatch.setattr(loss, "HubLook", Look)
    gaps = {0: [(3, 10)], 1: [(5, 6)]}
    made = losses(gaps)
    client = cast("Any", None)
    made.look(client)
    with pytest.raises(ConnectionLostError, match="partition 0: events 3 to 7 were removed by the retention"):
        made.look(client)
    gaps[0] = [(3, 10)]  # the same gap, after the connection was made again
    made.look(client)
    made.look(client)
    assert gaps == {}
