from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.broker.config.duration import INFINITE_TEXT, format_duration, parse_duration
from isthmus.entities.catalog.description import INFINITE_MS
from isthmus.errors import InvalidArgumentError


def parse(text: str) -> int:
    return parse_duration(text, infinite_ms=INFINITE_MS)


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [
        ("PT1M", 60_000),
        ("PT0S", 0),
        ("P1DT2H3M4.5S", 93_784_500),
        ("PT.5S", 500),
        ("PT0.0000001S", 1),
        ("PT90S", 90_000),
        ("P1Y", 365 * 86_400_000),
        ("P2M", 60 * 86_400_000),
        (" PT1M ", 60_000),
        (INFINITE_TEXT, INFINITE_MS),
        # What Python makes of it when it writes it back.
        ("P10675199DT2H48M5.477581S", INFINITE_MS),
        ("P10675199DT2H48M5.477539S", INFINITE_MS),
        ("P10675200D", INFINITE_MS),
    ],
)
def test_reads(text: str, duration_ms: int) -> None:
    assert parse(text) == duration_ms


@pytest.mark.parametrize(
    "text", ["", "P", "PT", "P1DT", "-PT1S", "1m", "PT1", "PT1M1H", "PT1.S.S", "P" + "1" * 80 + "D", "PT1.5M"]
)
def test_refuses(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="duration"):
        parse(text)


@pytest.mark.parametrize(
    ("duration_ms", "text"),
    [
        (60_000, "PT1M"),
        (0, "PT0S"),
        (600_000, "PT10M"),
        (1_209_600_000, "P14D"),
        (500, "PT0.5S"),
        (INFINITE_MS, INFINITE_TEXT),
    ],
)
def test_writes_as_the_service(duration_ms: int, text: str) -> None:
    assert format_duration(duration_ms) == text


@given(st.integers(0, 10_675_199 * 86_400_000 - 1))
def test_reads_what_it_writes(duration_ms: int) -> None:
    assert parse(format_duration(duration_ms)) == duration_ms
