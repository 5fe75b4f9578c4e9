"""The results of a query for one batch, without Spark."""

from __future__ import annotations

from typing import Any

import pytest

from isthmus.amqp import section
from isthmus.replication.shuffle.query import results
from isthmus.replication.step.message.message import StepMessage

SETTINGS = {
    "window": 60_000,
    "wait": 1_000,
    "by": ["carrier"],
    "fields": {"flights": "count", "delay": "avg(dep_delay)"},
}
START = 1_795_000_020_000


def row(by: str, start_ms: int = START, kind: int = 0, **values: Any) -> dict[str, Any]:
    made = {"kind": kind, "start_ms": start_ms, "end_ms": start_ms + 60_000, "by": by, "count": 3, "v0": 3.0, "v1": 1.5}
    return made | values


def test_results_come_by_window_and_bear_numbers_of_the_spool() -> None:
    rows = [row('["UA"]', START + 60_000), row('["UA"]'), row('["AA"]'), row("[]", kind=1), row('["UA"]', kind=2)]
    records, count = results(SETTINGS, rows, "sums", "ewr/q/sums id", 7)
    assert count == 9
    messages = [StepMessage(each.message) for each in records]
    assert [(each.json["carrier"], each.json["window_start"]) for each in messages] == [
        ("AA", "2026-11-18T11:07:00Z"),
        ("UA", "2026-11-18T11:07:00Z"),
        ("UA", "2026-11-18T11:08:00Z"),
    ]
    assert messages[0].json == {
        "window_start": "2026-11-18T11:07:00Z",
        "window_end": "2026-11-18T11:08:00Z",
        "carrier": "AA",
        "flights": 3,
        "delay": 1.5,
    }
    numbers = [
        section.decode_map(each.raw, each.sections.message_annotations)["x-opt-sequence-number"] for each in messages
    ]
    assert numbers == [7, 8, 9]
    assert {each.key for each in records} == {"ewr/q/sums id"}


def test_the_message_id_is_the_windows_and_the_groups() -> None:
    def message_id(*rows: dict[str, Any], number: int = 0) -> str:
        ((record,), _) = results(SETTINGS, list(rows), "sums", "s id", number)
        return str(StepMessage(record.message).properties["message_id"])

    assert (
        message_id(row('["UA"]')) == message_id(row('["UA"]', v0=9.0), number=50) == "sums/2026-11-18T11:07:00Z/1m/UA"
    )
    others = {message_id(row(by)) for by in ('["UA"]', '["AA"]', '["U/A"]', '["' + "x" * 500 + '"]', '["\\n"]', "[1]")}
    # Where `window` was changed, two begin at the same time.
    others |= {message_id(row(by, end_ms=START + 300_000)) for by in ('["UA"]', '["U/A"]')}
    assert len(others) == 8
    assert all(len(each) <= 128 for each in others)


@pytest.mark.parametrize(
    ("one", "other"),
    [('["1"]', "[1]"), ('["null"]', "[null]"), ('["true"]', "[true]"), ('["1.0"]', "[1.0]"), ("[1]", "[1.0]")],
)
def test_i2_groups_that_differ_in_type_alone_have_two_message_ids(one: str, other: str) -> None:
    """Where a target detects duplicates, the second would be dropped."""
    records, _ = results(SETTINGS, [row(one), row(other)], "sums", "s id", 0)
    assert len({StepMessage(each.message).properties["message_id"] for each in records}) == 2


def test_a_window_without_values_has_null() -> None:
    ((record,), _) = results(SETTINGS, [row('["UA"]', v1=None)], "sums", "s id", 0)
    assert StepMessage(record.message).json["delay"] is None
