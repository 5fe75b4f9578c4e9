from __future__ import annotations

import click
import pytest
import typer

from isthmus.bench.distance import with_ratios
from isthmus.cli.bench import _round_trips


def test_rates_are_reported_as_shares_of_the_first() -> None:
    found = {
        "0": {"messages_per_second": 40_000.0, "alone_messages_per_second": 20_000.0, "p50_ms": 4.0},
        "100": {"messages_per_second": 38_000.0, "alone_messages_per_second": 9_000.0, "p50_ms": 55.0},
    }
    reported = with_ratios(found)
    assert [reported[trip]["ratio"] for trip in reported] == [1.0, 0.95]
    assert reported["100"]["alone_ratio"] == 0.45
    assert reported["100"]["p50_ms"] == 55.0


def test_round_trips_are_read() -> None:
    assert _round_trips("0,10, 2.5") == [0.0, 10.0, 2.5]


@pytest.mark.parametrize("text", ["", "a", "-1", "10,10", "99999", "nan"])
def test_what_is_no_list_of_round_trips_is_refused(text: str) -> None:
    with pytest.raises((typer.BadParameter, click.BadParameter), match=r"e\.g\. 0,10,100"):
        _round_trips(text)
