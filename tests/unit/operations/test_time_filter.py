"""Filters in which an operator writes times as text."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from isthmus.amqp import section
from isthmus.amqp.types import Long, Timestamp
from isthmus.errors import InvalidArgumentError
from isthmus.operations.message import make_choice
from isthmus.operations.time_filter import parse_operator_filter
from isthmus.rules import DictView

VIEW = DictView(
    sys={
        "EnqueuedTimeUtc": datetime(2026, 6, 1, tzinfo=UTC),
        "TimeToLive": timedelta(minutes=5),
        "Label": "2026-01-01",
    },
    user={"n": 7},
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("sys.EnqueuedTimeUtc < '2026-06-02'", True),
        ("sys.EnqueuedTimeUtc < '2026-06-01'", False),
        ("'2026-05-31T23:59:59Z' < sys.EnqueuedTime AND n = 7", True),
        ("sys.EnqueuedTimeUtc = '2026-06-01T02:00:00+02:00'", True),
        ("NOT (sys.EnqueuedTimeUtc >= '2026-06-01' OR n = 8)", False),
        ("sys.TimeToLive > '0:04:00' AND sys.TimeToLive < '0:06:00'", True),
        ("sys.Label = '2026-01-01'", True),
    ],
)
def test_a_text_beside_a_time_is_a_time(text: str, expected: bool) -> None:
    assert parse_operator_filter(text).matches(VIEW) is expected


@pytest.mark.parametrize("text", ["sys.EnqueuedTimeUtc < 'yesterday'", "sys.TimeToLive > 'long'"])
def test_i1_a_text_that_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="the filter compares sys"):
        parse_operator_filter(text)


def test_messages_are_chosen_by_the_time_at_which_they_came() -> None:
    came = Timestamp(int(datetime(2026, 6, 1, tzinfo=UTC).timestamp() * 1000))
    message = section.encode_message(b"x", annotations={"x-opt-sequence-number": Long(1), "x-opt-enqueued-time": came})
    assert make_choice("sys.EnqueuedTimeUtc < '2027-01-01'")(message)
    assert not make_choice("sys.EnqueuedTimeUtc < '2026-01-01'")(message)
