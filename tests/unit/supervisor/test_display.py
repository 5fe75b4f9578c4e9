"""The display of a route that failed."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from isthmus.supervisor.display import RECENT_SECONDS, route_table


def shown(**route: Any) -> str:
    whole = {
        "name": "flights.ewr.jfk",
        "phase": "moving",
        "state": "moving",
        "moved": 1000,
        "rate_per_second": 10.0,
        "waiting": 0,
        "oldest_age_seconds": None,
        "memory_bytes": 0,
        "last_error": "ewr (127.0.0.1:5672): Connection refused",
        "last_error_seconds_ago": 12.0,
        **route,
    }
    text = StringIO()
    Console(file=text, width=200).print(route_table([whole]))
    return text.getvalue()


def test_a_route_that_failed_shows_why_and_when_it_is_tried_again() -> None:
    text = shown(phase="failed", state="failed, retry in 3 s")
    assert "failed, retry in 3 s" in text
    assert "ewr (127.0.0.1:5672): Connection refused" in text
    assert "ago" not in text


def test_a_route_that_has_recovered_shows_for_a_while_what_it_was() -> None:
    assert "failed 12 s ago: ewr (127.0.0.1:5672): Connection refused" in shown()


@pytest.mark.parametrize(
    "route",
    [{"last_error_seconds_ago": RECENT_SECONDS + 1}, {"last_error": "", "last_error_seconds_ago": None}],
)
def test_what_is_long_over_is_not_shown(route: dict[str, Any]) -> None:
    assert "failed" not in shown(**route)


def test_spools_have_a_column_where_a_route_has_one() -> None:
    spool = {"waiting": 1200, "bytes": 3 << 20, "oldest_age_seconds": 4.0, "suppressed": 7, "refused": 2}
    text = shown(spool=spool, dropped=5)
    assert "in spool" in text
    assert "1,200, 3 MiB, 2 refused" in text
    assert "dropped" in text
    assert "in spool" not in shown(spool=None)
