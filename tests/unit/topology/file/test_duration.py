from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.topology.file.duration import INFINITE_MS, format_ms, parse_ms


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [
        ("10m", 600_000),
        ("1h30m", 5_400_000),
        ("1h 30m", 5_400_000),
        ("500ms", 500),
        ("7d", 604_800_000),
        ("PT10M", 600_000),
        ("P1DT2.5S", 86_402_500),
        ("P10675199DT2H48M5.4775807S", INFINITE_MS),
    ],
)
def test_durations_are_read(text: str, duration_ms: int) -> None:
    assert parse_ms(text) == duration_ms


@pytest.mark.parametrize("text", ["", "10", "m", "10 minutes", "-5s", "P", "PT", "1.5h", "10M"])
def test_what_has_no_unit_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        parse_ms(text)


@given(st.integers(min_value=0, max_value=36_499 * 86_400_000))
def test_what_is_written_is_read_back(duration_ms: int) -> None:
    assert parse_ms(format_ms(duration_ms)) == duration_ms


def test_the_largest_is_infinite_also_as_the_python_sdk_rounds_it() -> None:
    assert format_ms(INFINITE_MS) == format_ms(INFINITE_MS - 5) == "infinite"
