"""isthmus.connectors.rabbitmq.port.ready: messages that wait for credit."""

from __future__ import annotations

from isthmus.connectors.rabbitmq.port.ready import Ready


def test_positions_that_follow_each_other_are_a_range() -> None:
    """The lease handles a range at once, and other positions one by one."""
    ready = Ready()
    for position in (5, 6, 7, 9):
        ready.add(position, b"m%d" % position)
    first = ready.take(3)
    assert (first.positions, first.payloads) == (range(5, 8), (b"m5", b"m6", b"m7"))
    ready.add(11, b"m11")
    assert list(ready.take(10).positions) == [9, 11]
    assert ready.nbytes == 0
