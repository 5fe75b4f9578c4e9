"""Steps over Arrow batches: order, flush rows, failures."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from isthmus.amqp import section, types
from isthmus.bridge.spark.row import batch_of, flush_batch
from isthmus.message.column import COLUMNS
from isthmus.replication.step.chain.row_stage import RowStage
from isthmus.replication.step.message import column
from isthmus.replication.step.message.message import StepMessage
from isthmus.topology.step import StepDeclaration


def raw(number: int, body: bytes = b"{}") -> bytes:
    return section.encode_message(
        body,
        properties={"message_id": f"{number}"},
        annotations={"x-opt-enqueued-time": types.Timestamp(1_700_000_000_123)},
        application_properties={
            "number": number,
            "at": types.Timestamp(1_600_000_000_456),
            "small": types.UByte(1),
            "list": [1],
            "none": None,
        },
    )


def step(kind: str, **settings: Any) -> str:
    return StepDeclaration(kind, {"on_failure": "dead-letter", **settings}).to_text()


def rows(*batches: pa.RecordBatch | None) -> list[dict[str, Any]]:
    return [row for batch in batches if batch is not None for row in batch.to_pylist()]


def test_i1_i2_rows_keep_their_order_and_a_failure_is_its_own() -> None:
    stage = RowStage(
        [step("filter", where="number <> 2", on_failure="drop"), step("set", action="SET n = 10 / (number - 3)")]
    )
    given = batch_of([(4, range(1, 5), [raw(n) for n in range(1, 5)]), (7, (1,), [b"unreadable"])])
    made = stage.take(given)
    found = rows(made)
    assert [(row["route"], row["position"], row["disposition"], row["reason"]) for row in found] == [
        (4, 1, None, None),
        (4, 2, "complete", "Filtered"),
        (4, 3, "dead-letter", "StepFailed"),
        (4, 4, None, None),
        (7, 1, "dead-letter", "StepFailed"),
    ]
    assert found[2]["description"].startswith("step set: FilterError")
    assert found[1]["message"] == raw(2)


def test_i3_flush_rows_pass_behind_what_came_before_and_fillers_behind_them() -> None:
    stage = RowStage([step("set", action="SET n = 1")])
    given = [
        batch_of([(1, (1,), [raw(1)])], 5, bytes(200)),
        batch_of([(1, (2,), [raw(2)])]),
        flush_batch(6, bytes(200)),
    ]
    made = rows(*(stage.take(each) for each in given))
    assert [(row["route"], row["position"], len(row["message"])) for row in made if row["route"] < 1] == [
        (-1, 5, 200),
        (0, 0, 0),
        (-1, 6, 200),
        (0, 0, 0),
    ]
    assert [row["route"] for row in made] == [1, -1, 0, 1, -1, 0]


def test_i3_a_canary_passes_untouched() -> None:
    stage = RowStage([step("filter", where="number > 0"), step("set", action="SET n = 1")])
    own = {"isthmus-canary": "flights.ewr.jfk"}
    canary = section.encode_message(b"{}", properties={"message_id": "c"}, application_properties=own)
    named = section.encode_message(b"isthmus-canary", properties={"message_id": "m"})
    found = rows(stage.take(batch_of([(1, (1, 2), [canary, named])])))
    assert [(row["message"], row["disposition"]) for row in found] == [(canary, None), (named, "dead-letter")]


def test_columns_that_are_written_back_as_they_came_change_nothing() -> None:
    given = batch_of([(1, (1,), [raw(1, b"\xff")])], 3, bytes(10))
    framed = RowStage([], added=COLUMNS).take(given)
    assert rows(framed)[0]["body"] == b"\xff"
    back = rows(RowStage([], written=COLUMNS).take(framed))
    assert back[0]["message"] == raw(1, b"\xff")
    assert back[0]["disposition"] is None


def test_what_was_changed_in_columns_is_written() -> None:
    framed = RowStage([], added=("body", "subject", "application_properties")).take(batch_of([(1, (1,), [raw(1)])]))
    assert framed is not None
    row = framed.to_pylist()[0]
    row["body"], row["subject"] = b"new", "s"
    row["application_properties"] = [("number", {"long": 2, "type": "long"}), ("text", {"string": "t"})]
    changed = pa.RecordBatch.from_pylist([row], schema=framed.schema)
    (back,) = rows(RowStage([], written=("body", "subject", "application_properties")).take(changed))
    sections = section.locate(back["message"])
    assert section.decode_map(back["message"], sections.application_properties) == {"number": 2, "text": "t"}
    assert section.decode_properties(back["message"], sections.properties) == {"message_id": "1", "subject": "s"}
    assert back["message"].endswith(b"new")


def refuses(message: StepMessage) -> tuple[str, str]:
    """Gives the body as the reason, whatever it contains."""
    return "dead-letter", str(message.json["why"])


def test_i1_a_row_that_no_column_holds_is_set_aside_and_the_others_continue(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that cannot be made ends the lease; its rows come again, and so without end."""
    read = column.read

    def of_any_kind(message: StepMessage, name: str) -> Any:
        return 1 << 70 if message.properties["message_id"] == "2" and name == "time_to_live_ms" else read(message, name)

    monkeypatch.setattr(column, "read", of_any_kind)
    stage = RowStage([], added=("subject", "time_to_live_ms"))
    given = batch_of([(4, range(1, 4), [raw(1), raw(2), raw(3)])], 5, bytes(10))
    found = rows(stage.take(given))
    assert [(row["route"], row["position"], row["disposition"], row["reason"]) for row in found] == [
        (4, 1, None, None),
        (4, 2, "dead-letter", "StepFailed"),
        (4, 3, None, None),
        (-1, 5, None, None),
        (0, 0, None, None),
    ]
    assert found[1]["message"] == raw(2)


def test_i1_a_reason_that_is_no_text_sets_its_own_message_aside_only() -> None:
    stage = RowStage([step("python", function=f"{__name__}:refuses", takes="message")])
    half = rb'{"why": "\ud83d is half of it"}'
    whole = rb'{"why": "late"}'
    found = rows(stage.take(batch_of([(4, range(1, 3), [raw(1, half), raw(2, whole)])])))
    assert [(row["disposition"], row["reason"]) for row in found] == [
        ("dead-letter", "\\ud83d is half of it"),
        ("dead-letter", "late"),
    ]


def test_i1_of_columns_nan_and_a_count_beyond_int_change_nothing() -> None:
    message = section.encode_message(
        b"x", header=section.Header(delivery_count=0xFFFFFFFF), application_properties={"x": float("nan"), "y": 1}
    )
    added = RowStage([], added=COLUMNS).take(batch_of([(4, (1,), [message])]))
    assert added is not None
    (row,) = rows(RowStage([], written=COLUMNS).take(added))
    assert (row["message"], row["disposition"]) == (message, None)


def test_a_zero_of_another_sign_is_written() -> None:
    message = section.encode_message(b"x", application_properties={"x": 0.0})
    read = StepMessage(message)
    column.write(read, "application_properties", [("x", {"double": -0.0, "type": "double"})])
    assert str(StepMessage(read.encoded()).application_properties["x"]) == "-0.0"


TO = {"on_failure": "divert", "divert_to": {"to": "ops", "queue": "bad"}}


def test_a_diverted_row_holds_the_message_as_it_came_and_names_where_it_goes() -> None:
    stage = RowStage(
        [
            step("set", action="SET number = number + 1"),
            step("filter", where="number <> 3", **TO),
            step("set", action="SET n = 1"),
        ]
    )
    first, second = rows(stage.take(batch_of([(4, (1, 2), [raw(1), raw(2)])])))
    assert (first["disposition"], first["message"] != raw(1)) == (None, True)
    assert (second["disposition"], second["reason"]) == ("divert:ops/bad", "Filtered")
    assert second["message"] == raw(2)


def test_a_diverted_row_of_columns_holds_the_message_as_it_came() -> None:
    framed = RowStage([], added=("subject",)).take(batch_of([(1, (1,), [raw(1)])]))
    assert framed is not None
    changed = pa.RecordBatch.from_pylist([framed.to_pylist()[0] | {"subject": "new"}], schema=framed.schema)
    (found,) = rows(RowStage([step("filter", where="number = 2", **TO)], written=("subject",)).take(changed))
    assert (found["disposition"], found["message"]) == ("divert:ops/bad", raw(1))


def diverts(message: StepMessage) -> tuple[str, str]:
    """Requests itself that its message is diverted."""
    return "divert", "Odd"


@pytest.mark.parametrize(
    ("settings", "reported"),
    [
        (TO, ("divert:ops/bad", "Odd")),
        ({}, ("dead-letter", "StepFailed")),
    ],
)
def test_a_function_diverts_where_its_step_says_where_to(settings: dict[str, Any], reported: tuple[str, str]) -> None:
    stage = RowStage([step("python", function=f"{__name__}:diverts", takes="message", **settings)])
    (found,) = rows(stage.take(batch_of([(1, (1,), [raw(1)])])))
    assert (found["disposition"], found["reason"]) == reported
