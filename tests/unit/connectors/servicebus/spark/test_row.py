import uuid
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.amqp import codec, section, types
from isthmus.amqp.section import Header, locate
from isthmus.connectors.servicebus.message.sequence import SequenceFinder, sequences_of
from isthmus.connectors.servicebus.spark.row import (
    RAW_SCHEMA,
    decoded_batch,
    encode,
    raw_batch,
)

values = st.one_of(
    st.text(),
    st.binary(),
    st.integers(-(2**63), 2**63 - 1).map(types.Long),
    st.integers(0, 2**64 - 1).map(types.ULong),
    st.integers(-(2**31), 2**31 - 1).map(types.Int),
    st.integers(0, 255).map(types.UByte),
    st.integers(-128, 127).map(types.Byte),
    st.integers(0, 2**13).map(types.Timestamp),
    st.booleans(),
    st.floats(allow_nan=False),
    st.floats(allow_nan=False, width=32).map(types.Float),
    st.uuids(),
    st.text(alphabet="abc").map(types.Symbol),
    st.integers(-(2**40), 2**40).map(lambda n: types.Described(types.Symbol("com.microsoft:timespan"), types.Long(n))),
    st.none(),
)
texts = st.text(max_size=50)


@settings(deadline=None)  # the first conversion loads half of Arrow
@given(
    body=st.binary(max_size=200),
    own=st.dictionaries(st.text(min_size=1), values, max_size=8),
    properties=st.fixed_dictionaries(
        {}, optional=dict.fromkeys(("message_id", "subject", "content_type", "group_id", "reply_to", "to"), texts)
    ),
    ttl_ms=st.none() | st.integers(1, 2**31),
)
def test_decode_then_encode_keeps_every_type_i1(
    body: bytes, own: dict[str, Any], properties: dict[str, str], ttl_ms: int | None
) -> None:
    message = section.encode_message(
        body,
        header=Header(True, ttl_ms=ttl_ms),
        annotations={"x-opt-sequence-number": types.Long(4), "x-opt-partition-key": "pk"},
        properties=properties,
        application_properties=own,
    )
    row = decoded_batch([message], [b"t"], [4]).to_pylist()[0]
    again = encode(row)
    before, after = locate(message), locate(again)
    restored = section.decode_map(again, after.application_properties)
    assert restored == own
    assert {k: type(v) for k, v in restored.items()} == {
        k: types.Long if type(v) is int else type(v)
        for k, v in section.decode_map(message, before.application_properties).items()
    }
    assert again[slice(*after.body)] == message[slice(*before.body)]
    kept = section.decode_properties(message, before.properties)
    assert section.decode_properties(again, after.properties) == kept
    assert section.decode_map(again, after.message_annotations) == {"x-opt-partition-key": "pk"}
    if ttl_ms is not None:
        assert section.decode_header(again, after.header).ttl_ms == ttl_ms


@pytest.mark.parametrize("body", ["text", 7, [1, "two"], {"k": uuid.UUID(int=5)}])
def test_bodies_that_are_no_data_pass_encoded(body: Any) -> None:
    message = section.encode_message(body, value_body=True, annotations={"x-opt-sequence-number": types.Long(1)})
    row = decoded_batch([message], [None], [1]).to_pylist()[0]
    assert row["body_type"] == "value"
    assert encode(row).endswith(message[slice(*locate(message).body)])


@pytest.mark.parametrize("ms", [2**62, -(2**62), 253_402_300_800_000, -62_135_596_800_001])
def test_times_that_cannot_be_determined_keep_no_message_from_being_read(ms: int) -> None:
    message = section.encode_message(
        b"x",
        annotations={
            "x-opt-sequence-number": types.Long(1),
            types.Symbol("x-opt-scheduled-enqueue-time"): types.Timestamp(ms),
        },
        application_properties={"when": types.Timestamp(ms)},
    )
    row = decoded_batch([message], [b"t"], [4]).to_pylist()[0]
    assert row["scheduled_enqueue_time"] is None
    again = section.decode_map(encode(row), locate(encode(row)).application_properties)
    assert again == {"when": types.Timestamp(ms)}


def test_a_schedule_that_is_no_time_keeps_no_message_from_being_read() -> None:
    message = section.encode_message(b"x", annotations={types.Symbol("x-opt-scheduled-enqueue-time"): "tomorrow"})
    assert decoded_batch([message], [b"t"], [4]).to_pylist()[0]["scheduled_enqueue_time"] is None


BROKEN = {
    "text that is no UTF-8": b"\0Ss\xc0\x06\x01\xa1\x03\xff\xfe\xfd",
    "properties that are no list": b"\0SsU\x05",
    "a section that is cut off": b"\0St\xd1\0\0\xff\xff\0\0\0\x02",
    "a header whose count of deliveries is text": b"\0Sp\xc0\x06\x05@@@@\xa1\0",
}


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
def test_a_message_that_cannot_be_read_is_a_row_that_continues_as_it_came(broken: bytes) -> None:
    unreadable = broken + b"\0Su\xa0\x01x"
    sound = section.encode_message(b"x", annotations={"x-opt-sequence-number": types.Long(8)})
    rows = decoded_batch([unreadable, sound], [b"t", b"u"], [7, 8]).to_pylist()
    assert [row["body_type"] for row in rows] == ["unreadable", "data"]
    assert {name: value for name, value in rows[0].items() if value is not None} == {
        "body": unreadable,
        "lock_token": b"t",
        "sequence_number": 7,
        "body_type": "unreadable",
        "size_bytes": len(unreadable),
    }
    assert encode(rows[0]) == unreadable


@pytest.mark.parametrize("name", ["x-opt-enqueue-sequence-number", "x-opt-locked-until", "x-opt-message-state"])
@pytest.mark.parametrize("value", ["tomorrow", 2**63, [1]])
def test_annotations_that_no_broker_writes_keep_no_message_from_being_read(name: str, value: Any) -> None:
    value = types.ULong(value) if isinstance(value, int) else value
    message = section.encode_message(b"x", annotations={types.Symbol(name): value})
    row = decoded_batch([message], [b"t"], [3]).to_pylist()[0]
    assert (row["body_type"], row["locked_until"], row["enqueued_sequence_number"]) == ("data", None, None)
    assert row["state"] == 0


def test_a_timespan_that_is_no_number_passes_encoded() -> None:
    own = {"span": types.Described(types.Symbol("com.microsoft:timespan"), "1 h")}
    row = decoded_batch([section.encode_message(b"x", application_properties=own)], [b"t"], [1]).to_pylist()[0]
    assert section.decode_map(encode(row), locate(encode(row)).application_properties) == own


@pytest.mark.parametrize("count", [3, 100])
def test_raw_batches_hold_messages(count: int) -> None:
    payloads = [b"x" * (at % 7) for at in range(count)]
    batch = raw_batch(payloads, [b"a" * 16] * count, range(5, 5 + count))
    assert batch.schema.equals(RAW_SCHEMA)
    assert batch.column(0).to_pylist() == payloads
    assert batch.column(2).to_pylist() == list(range(5, 5 + count))
    assert raw_batch([], [], []).num_rows == 0
    batch.validate(full=True)


@given(st.lists(st.tuples(st.integers(1, 2**62), st.booleans(), st.text(max_size=20)), min_size=1))
def test_sequence_numbers_are_those_of_the_annotations(rows: list[tuple[int, bool, str]]) -> None:
    messages = [
        section.encode_message(
            b"\xa3\x15x-opt-sequence-number\x81" + bytes(8),
            header=Header(True) if with_header else None,
            annotations={"mine": text, "x-opt-sequence-number": types.Long(sequence)},
        )
        for sequence, with_header, text in rows
    ]
    expected = [sequence for sequence, _, _ in rows]
    assert list(sequences_of(messages)) == expected
    one_by_one = SequenceFinder()
    assert [number for message in messages for number in one_by_one.of([message])] == expected


def test_consecutive_sequence_numbers_are_a_range() -> None:
    messages = [
        section.encode_message(b"", annotations={"x-opt-sequence-number": types.Long(n)}) for n in range(1000, 1100)
    ]
    assert sequences_of(messages) == range(1000, 1100)
    assert pa.array(np.asarray(sequences_of(messages))).to_pylist()[-1] == 1099


def test_a_sender_does_not_choose_the_sequence_number_that_is_read() -> None:
    name = types.Symbol("x-opt-sequence-number")

    def delivered(sequence: int, own: bytes) -> bytes:
        whole = section.encode_message(b"", header=Header(True), annotations={name: types.Long(sequence)})
        end = section.locate(whole).header[1]
        return whole[:end] + b"\0Sq" + codec.encode({types.Symbol("own"): own}) + whole[end:]

    first = delivered(7000, b"x" * 40)
    low, _ = section.locate(first).message_annotations
    forged = section.encode_message(b"", annotations={name: types.Long(1000)})
    second = delivered(8000, b"x" * (40 - len(codec.encode(b""))) + b"xx" + forged)
    assert second.startswith(forged, low)
    assert list(sequences_of([first, second])) == [7000, 8000]
    for messages, expected in (([first, second], [7000, 8000]), ([second, first], [8000, 7000])):
        one_by_one = SequenceFinder()
        assert [number for message in messages for number in one_by_one.of([message])] == expected


def test_a_body_of_a_type_that_is_unknown_is_refused() -> None:
    with pytest.raises(ValueError, match="column 'body_type' contains 'Value'; write data, value, sequence"):
        encode({"body": b"x", "body_type": "Value"})
