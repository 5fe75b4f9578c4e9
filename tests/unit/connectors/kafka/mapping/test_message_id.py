"""MessageIds made of a record's position."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from isthmus.amqp import section
from isthmus.bridge.port import PARTITION_SHIFT
from isthmus.connectors.kafka.mapping.mapping import to_message, to_record
from isthmus.connectors.kafka.mapping.message_id import MESSAGE_ID_CHARACTERS, MessageIds, message_id
from isthmus.connectors.kafka.mapping.record import Record

POSITION = 3 << PARTITION_SHIFT | 41
RECORDS = st.builds(
    Record,
    st.none() | st.binary(max_size=20),
    st.none() | st.binary(max_size=140) | st.just(b"key") | st.just(b"k" * 128),
    st.lists(st.tuples(st.sampled_from("abc"), st.none() | st.binary(max_size=9)), max_size=3),
    st.none() | st.integers(0, 1 << 45),
    st.integers(0, 9),
)


@given(RECORDS, st.sampled_from(["t", "flights", "t" * 249]))
def test_only_the_message_id_is_added(record: Record, topic: str) -> None:
    before = to_message(record, POSITION)
    after = MessageIds(topic).add(before, POSITION)
    old, new = section.locate(before), section.locate(after)
    fields = section.decode_properties(after, new.properties)
    assert fields == {**section.decode_properties(before, old.properties), "message_id": message_id(topic, POSITION)}
    for name in ("header", "message_annotations", "application_properties", "body", "footer"):
        assert after[slice(*getattr(new, name))] == before[slice(*getattr(old, name))]


def test_i1_an_existing_message_id_is_kept() -> None:
    sent = section.encode_message(b"body", properties={"message_id": "mine", "subject": "s"})
    read = to_message(to_record(sent)._replace(partition=0, timestamp_ms=5), POSITION)
    assert MessageIds("t").add(read, POSITION) == read


def test_a_message_id_names_topic_partition_and_offset() -> None:
    assert message_id("flights", POSITION) == "flights/3/41"


def test_a_message_id_is_never_too_long_and_stays_unique() -> None:
    first, second = (message_id("t" * 249, position) for position in (POSITION, POSITION + 1))
    assert len(first) == MESSAGE_ID_CHARACTERS
    assert first != second
