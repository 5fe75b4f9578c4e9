"""Messages as steps read and change them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.amqp import section, types
from isthmus.replication.step.message.message import StepMessage
from isthmus.rules import MISSING, REMOVED, parse_action


def message(body: bytes = b'{"a":1}', **application: object) -> bytes:
    return section.encode_message(
        body,
        header=section.Header(durable=True, priority=7, ttl_ms=60_000, delivery_count=2),
        annotations={"x-opt-partition-key": "k", "x-opt-sequence-number": types.Long(9)},
        properties={"message_id": "1", "subject": "s", "content_type": "application/json"},
        application_properties={"Carrier": "UA", "small": types.UByte(3), **application},
    )


@given(st.binary(max_size=300))
def test_i1_a_message_that_nothing_changed_is_the_same_bytes(body: bytes) -> None:
    raw = message(body)
    read = StepMessage(raw)
    assert read.body == body
    assert read.user("carrier") == "UA"
    assert read.encoded() == raw


def test_i2_what_was_not_changed_stays_as_it_was_encoded() -> None:
    raw = message()
    changed = StepMessage(raw)
    changed.set_application_property("CARRIER", "AA")
    changed.set_application_property("added", True)
    after, before = StepMessage(changed.encoded()), StepMessage(raw)
    assert after.application_properties == {"Carrier": "AA", "small": 3, "added": True}
    assert isinstance(after.application_properties["small"], types.UByte)
    for name in ("header", "message_annotations", "properties", "body"):
        cut = [each.raw[slice(*getattr(each.sections, name))] for each in (after, before)]
        assert cut[0] == cut[1]


def test_an_action_changes_header_annotations_properties_and_application_properties() -> None:
    raw = message()
    read = StepMessage(raw)
    action = "SET sys.Label = 't'; REMOVE sys.PartitionKey; SET sys.TimeToLive = '00:00:05'; REMOVE small; SET n = 5"
    read.apply(parse_action(action).apply(read))
    after = StepMessage(read.encoded())
    assert (after.sys("Label"), after.sys("PartitionKey"), after.user("small"), after.user("n")) == (
        "t",
        MISSING,
        MISSING,
        5,
    )
    assert after.sys("TimeToLive") == timedelta(seconds=5)
    assert section.decode_header(after.raw, after.sections.header)[:2] == (True, 7)
    assert (after.sys("SequenceNumber"), after.sys("DeliveryCount"), after.body) == (9, 2, b'{"a":1}')


def test_json_is_written_when_it_was_touched() -> None:
    read = StepMessage(message())
    read.json_object()["b"] = "ü"
    assert not read.is_changed
    read.touch_json()
    assert read.body == '{"a":1,"b":"ü"}'.encode()
    assert StepMessage(read.encoded()).json == {"a": 1, "b": "ü"}
    read.body = b"[]"
    with pytest.raises(ValueError, match="a JSON list"):
        read.json_object()


def test_a_value_body_is_read_as_text_and_written_as_data() -> None:
    read = StepMessage(section.encode_message("text", value_body=True))
    assert read.body == b"text"
    read.body = "other"
    assert StepMessage(read.encoded()).body == b"other"
    with pytest.raises(ValueError, match="neither bytes nor text"):
        StepMessage(section.encode_message([1], value_body=True)).body  # noqa: B018 - it is read


def test_the_last_property_can_be_removed() -> None:
    read = StepMessage(section.encode_message(b"", application_properties={"only": 1}))
    read.set_application_property("only", REMOVED)
    assert StepMessage(read.encoded()).application_properties == {}


@pytest.mark.parametrize("value", [5, True, [1, 2], None, {"a": 1}])
def test_a_body_that_is_neither_bytes_nor_text_is_refused(value: Any) -> None:
    made = StepMessage(section.encode_message(b"x"))
    with pytest.raises(TypeError, match="a body is bytes or text"):
        made.body = value
    assert made.encoded() == made.raw
