"""Tables on terminals of any width."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text

from isthmus.supervisor.display import route_table
from isthmus.supervisor.fitting_table import FittingTable

WIDTHS = (40, 80, 120, 300)


def shown(table: object, width: int, *, terminal: bool = True, colours: bool = False) -> list[str]:
    out = io.StringIO()
    console = Console(
        file=out, width=width, soft_wrap=True, force_terminal=terminal, color_system="standard" if colours else None
    )
    console.print(table)
    return out.getvalue().splitlines()


def route(**changes: Any) -> dict[str, Any]:
    return {
        "name": "flights.ewr-production.jfk-production",
        "phase": "failed",
        "state": "failed, retry in 12 s",
        "moved": 1_234_567,
        "dead_lettered": 12,
        "discarded": 0,
        "rate_per_second": 812.3,
        "waiting": 1200,
        "oldest_age_seconds": 4000.0,
        "last_error": "jfk (broker.example.com:5671): Connection refused",
        "last_error_seconds_ago": 3.0,
        "spool": {"waiting": 1200, "bytes": 5 << 20, "refused": 0},
        "canary_age_seconds": 12.0,
        "canary_latency_seconds": 0.023,
        "memory_bytes": 512 << 20,
        **changes,
    }


@pytest.mark.parametrize("width", WIDTHS)
def test_i1_every_cell_is_whole_at_any_width(width: int) -> None:
    lines = shown(route_table([route(), route(name="flights.jfk.ewr")], "run by process 12"), width)
    text = " ".join(" ".join(lines).split())
    for cell in ("flights.ewr-production.jfk-production", "failed, retry in 12 s", "1,234,567", "1 h 6 min", "23 ms"):
        assert cell in text
    assert "jfk (broker.example.com:5671): Connection refused" in text
    assert "…" not in text


def test_a_route_fits_80_columns() -> None:
    assert max(map(len, shown(route_table([route()], "run by process 12"), 80))) <= 80


def test_what_is_zero_everywhere_has_no_column() -> None:
    (headings, _, *_) = shown(route_table([route(dead_lettered=0, spool=None)]), 300)
    assert "dead-lettered" not in headings
    assert "in spool" not in headings
    assert "moved" in headings


def test_i2_each_row_is_one_line_where_the_output_is_no_terminal() -> None:
    lines = shown(route_table([route(last_error="")]), 40, terminal=False)
    assert len(lines) == 2
    assert lines[1].startswith("flights.ewr-production.jfk-production  failed, retry in 12 s")


def test_cells_of_several_lines_are_printed_below_their_heading() -> None:
    table = FittingTable("a", "b", ">c")
    table.add_row("x", "one\ntwo", "3", notes=("a note",))
    assert shown(table, 80) == ["a  b    c", "x  one  3", "   two", "  a note"]
    narrow = FittingTable("a", "b", "long")
    narrow.add_row("x", "one", "three and more\n4", notes=("a note",))
    assert shown(narrow, 20) == ["x  one", "  long three and", "  more, long 4", "  a note"]


def test_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    table = FittingTable("state")
    table.add_row(Text("failed", style="red"))
    assert "\x1b[31m" in "\n".join(shown(table, 80, colours=True))
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[31m" not in "\n".join(shown(table, 80, colours=True))
