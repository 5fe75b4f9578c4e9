"""The demo's data matches its description."""

from __future__ import annotations

import importlib.util
from collections import Counter
from datetime import UTC, datetime

import pytest

from isthmus.demo.flight import ORIGINS, FlightsMissingError, flights


def test_i1_january_has_its_rows_each_once() -> None:
    rows = list(flights(1))
    assert len(rows) == 27_004
    origins = Counter(row["origin"] for row in rows)
    assert [origins[name] for name in ORIGINS] == [9893, 9161, 7950]


def test_i2_fields_have_types_and_absent_ones_are_absent() -> None:
    rows = flights(1)
    first = next(rows)
    assert first["carrier"] == "UA"
    assert first["flight"] == 1545
    assert first["time_hour"] == datetime(2013, 1, 1, 10, tzinfo=UTC)
    cancelled = [row for row in rows if "dep_time" not in row]
    assert len(cancelled) == 521
    assert all(row["sched_dep_time"] for row in cancelled)


def test_a_missing_package_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(FlightsMissingError, match="pip install"):
        next(flights(1))
