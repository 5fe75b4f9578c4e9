"""What a pair makes of a message that it moves."""

from isthmus.amqp import codec, section
from isthmus.amqp.section import Header
from isthmus.amqp.types import Long, Symbol, Timestamp
from isthmus.operations.message import entered_as, sequence_of, state_of
from isthmus.pairing.mover import as_copy


def test_a_message_whose_sender_s_annotations_cannot_be_read_is_moved_with_them() -> None:
    own = [b"\xa3\4mine", b"\xa1\2\xff\xff"]
    pairs = [
        *own,
        codec.encode(Symbol("x-opt-enqueue-sequence-number")), codec.encode(Long(5)),
        codec.encode(Symbol("x-opt-sequence-number")), codec.encode(Long(7)),
        codec.encode(Symbol("x-opt-enqueued-time")), codec.encode(Timestamp(1_000)),
        codec.encode(Symbol("x-opt-message-state")), codec.encode(Long(2)),
    ]  # fmt: skip
    payload = (
        section.encode_header(Header(ttl_ms=10_000))
        + b"\0Sr"
        + codec.encode_map(pairs)
        + section.encode_message(b"body")
    )
    assert (sequence_of(payload), entered_as(payload), state_of(payload)) == (7, 5, 2)
    copy = as_copy(payload, 4_000, moved="0" * 32)
    found = section.locate(copy)
    assert section.decode_header(copy, found.header).ttl_ms == 7_000
    assert b"".join(own) in copy[slice(*found.message_annotations)]
    assert copy[slice(*found.body)] == b"\0Su\xa0\4body"
