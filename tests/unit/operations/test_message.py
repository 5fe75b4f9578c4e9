"""What an operator's tools read from a message that its sender made to mislead them."""

from __future__ import annotations

import pytest

from isthmus.amqp import codec, section
from isthmus.amqp.types import Int, Long, Symbol
from isthmus.operations.message import sequence_of, state_of

FORGED = b"\xa3\x15x-opt-sequence-number\x81" + (1).to_bytes(8, "big")


def delivered(sequence: int, own: dict[Symbol, object], before: bytes = b"") -> bytes:
    """As the namespace delivers it: its own annotations come first."""
    annotations = {Symbol("x-opt-sequence-number"): Long(sequence), Symbol("x-opt-message-state"): Int(2), **own}
    return before + section.encode_message(b"body", annotations=annotations)


@pytest.mark.parametrize("size", [0, 6000])
def test_a_sender_does_not_choose_the_sequence_number_that_is_read(size: int) -> None:
    annotation = codec.encode({Symbol("own"): b"x" * size + FORGED})
    message = delivered(size + 7000, {Symbol("own"): FORGED + b"x" * size}, b"\0Sq" + annotation)
    assert (sequence_of(message), state_of(message)) == (size + 7000, 2)
    assert sequence_of(section.encode_message(b"", annotations={Symbol("own"): FORGED})) == 0


def test_the_senders_annotations_may_come_first() -> None:
    own = {Symbol("own"): FORGED, Symbol("x-opt-sequence-number"): Long(7)}
    assert sequence_of(section.encode_message(b"", annotations=own)) == 7
