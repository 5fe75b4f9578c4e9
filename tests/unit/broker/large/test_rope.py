"""Values that are not in memory as a whole."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from isthmus.amqp import codec
from isthmus.broker.large import Rope, encode_rope
from isthmus.entities import Blob, Large

BODIES = {1: b"a" * 300, 2: b"b" * 7}


def read(rope: Rope) -> bytes:
    return b"".join(each if isinstance(each, bytes) else BODIES[each.number] for each in rope.segments)


def large(number: int, front: bytes) -> Large:
    return Large(front, Blob(number, len(BODIES[number])))


def test_it_reads_as_if_all_had_been_in_memory() -> None:
    token = UUID(int=5)

    def shape(first: Any, second: Any) -> Any:
        return {
            "messages": [{"lock-token": token, "message": first}, {"message": b"small"}, {"message": second}],
            "n": 1,
        }

    rope = encode_rope(shape(large(1, b"front"), large(2, b"")))
    assert rope is not None
    assert len(rope) == len(read(rope))
    assert rope.memory_bytes == len(rope) - 307
    assert codec.decode(read(rope))[0] == shape(b"front" + BODIES[1], BODIES[2])


def test_without_large_messages_there_is_none() -> None:
    assert encode_rope({"messages": [{"message": b"x"}], "n": [1]}) is None
    assert encode_rope(None) is None
