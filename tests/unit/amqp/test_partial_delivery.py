"""isthmus.amqp.partial_delivery."""

from __future__ import annotations

from isthmus.amqp.partial_delivery import PartialDelivery


def test_i1_small_pieces_are_put_together() -> None:
    partial = PartialDelivery(0, b"t", 0, False, None)
    pieces = [b"%d" % (number % 10) for number in range(1000)]
    for each in pieces:
        partial.add(each)
    assert b"".join(partial.parts) == b"".join(pieces)
    assert partial.size_bytes == 1000
    assert len(partial.parts) < 260


def test_large_pieces_stay_as_they_came() -> None:
    partial = PartialDelivery(0, b"t", 0, False, None)
    for _ in range(3):
        partial.add(b"x" * 5000)
    partial.add(b"")
    assert [len(each) for each in partial.parts] == [5000] * 3
