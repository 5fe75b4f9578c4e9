"""What the steps with windows read from a message, without Spark."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from isthmus.amqp import section
from isthmus.replication.step.aggregate import _Values, message_of, open_aggregate
from isthmus.replication.step.base import NamedStep, guarded
from isthmus.replication.step.deduplicate import _with_keys, key_of, slack_ms
from isthmus.replication.step.message.message import StepMessage

SETTINGS = {
    "by": ["carrier", "property:region"],
    "fields": {"n": "count", "delay": "sum(delay)", "told": "count(delay)"},
}


def encoded(body: Any, **properties: Any) -> bytes:
    return section.encode_message(
        json.dumps(body).encode(), properties={"message_id": "m"}, application_properties=properties
    )


@pytest.mark.parametrize(
    ("body", "reported"),
    [
        ({"delay": 1}, "no field carrier"),
        ({"carrier": "UA", "delay": "late"}, "its field delay is 'late', and sum needs numbers"),
        ({"carrier": "UA", "delay": True}, "sum needs numbers"),
        ({"carrier": {"name": "UA"}}, "no field carrier"),
        ([1], "an object is needed"),
    ],
)
def test_a_message_that_cannot_be_counted_is_set_aside_before_the_spool(body: Any, reported: str) -> None:
    step = NamedStep("aggregate", open_aggregate(SETTINGS))
    found = guarded(step, StepMessage(encoded(body, region="east")))
    assert found is not None
    assert found.kind == "dead-letter"
    assert reported in found.description


def test_a_value_may_be_absent() -> None:
    step = NamedStep("aggregate", open_aggregate(SETTINGS))
    assert guarded(step, StepMessage(encoded({"carrier": "UA"}, region="east"))) is None
    assert guarded(step, StepMessage(encoded({"carrier": None, "delay": 1.5}, region=1))) is None


def test_a_text_that_no_column_holds_is_set_aside_before_the_spool() -> None:
    """JSON may hold half of a surrogate pair. Behind the spool it would fail its batch each time."""
    step = NamedStep("aggregate", open_aggregate(SETTINGS))
    found = guarded(step, StepMessage(encoded({"carrier": "\ud800"}, region="east")))
    assert found is not None
    assert "half of a surrogate pair" in found.description


def test_a_key_that_no_column_holds_is_a_key() -> None:
    bodies = [{"booking": "\ud800"}, {"booking": "\ud800"}, {"booking": "\udc00"}]
    rows = {
        "kind": [0, 0, 0],
        "spool_number": [1, 2, 3],
        "source": ["s"] * 3,
        "time": [1] * 3,
        "message": [encoded(each) for each in bodies],
    }
    (made,) = _with_keys({"by": "booking"}, iter([pa.RecordBatch.from_pydict(rows)]))
    first, same, other = made.column("key").to_pylist()
    assert first == same != other


def test_numbers_that_a_float_does_not_distinguish_are_two_keys() -> None:
    """Otherwise the second message would not be passed on."""
    texts = ["1e400", "2e400", "12345678901234567890.25", "12345678901234567890.5"]
    keys = {key_of({"by": "n"})(section.encode_message(f'{{"n": {each}}}'.encode())) for each in texts}
    assert len(keys) == 4


def test_groups_of_numbers_that_a_float_does_not_distinguish_are_two() -> None:
    settings = {**SETTINGS, "by": ["n"], "fields": {"messages": "count"}}
    groups = []
    for number in ("12345678901234567890.25", "12345678901234567890.5"):
        by, _ = _Values(settings).of(StepMessage(section.encode_message(f'{{"n": {number}}}'.encode())))
        assert by == f"[{number}]"
        groups.append(message_of(settings, {"start_ms": 0, "end_ms": 1, "by": by, "count": 1, "v0": 1.0}, "t", 1))
        assert f'"n":{number}'.encode() in groups[-1]
    assert section.decode_properties(groups[0], section.locate(groups[0]).properties)["message_id"].endswith(".25")


def test_messages_are_compared_by_value_and_type() -> None:
    assert key_of({"by": "system:MessageId"})(encoded({})) == "system:MessageId:str:m"
    by = key_of({"by": "property:booking"})
    assert by(encoded({}, booking=1)) != by(encoded({}, booking="1"))
    assert key_of({"by": "flight.number"})(encoded({"flight": {"number": 7}})) == "flight.number:int:7"


@pytest.mark.parametrize("payload", [encoded({}), b"no message", section.encode_message(b"no json")])
def test_a_message_without_the_key_has_none(payload: bytes) -> None:
    assert key_of({"by": "booking"})(payload) == ""


def test_half_the_window_is_the_watermarks_delay() -> None:
    assert slack_ms({"window": 60_000}) == 30_000


def test_messages_without_the_key_are_distinguished_also_where_a_spool_begins_its_numbers_again() -> None:
    def keys(at_ms: int) -> list[str]:
        rows = {"kind": [0], "spool_number": [5], "source": ["s"], "time": [at_ms], "message": [encoded({})]}
        (made,) = _with_keys({"by": "property:none"}, iter([pa.RecordBatch.from_pydict(rows)]))
        return list(made.column("key").to_pylist())

    assert keys(1) != keys(2)
