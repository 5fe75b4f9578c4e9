"""isthmus.testing.fake_queue: what becomes of a locked message."""

from __future__ import annotations

from typing import Any

import pytest

from isthmus.amqp import Error, section
from isthmus.amqp.performative import Accepted, Modified, Rejected, Released
from isthmus.amqp.types import Symbol
from isthmus.testing.fake_queue import FakeQueue


@pytest.fixture(name="queue")
def _queue() -> FakeQueue:
    """With three messages, of which the second is locked."""
    queue = FakeQueue()
    for _ in range(3):
        queue.put(section.encode_message(b"x"))
    queue.waiting.remove(2)
    queue.locked[2] = object()
    return queue


@pytest.mark.parametrize(
    ("state", "fate", "waiting"),
    [
        (Accepted(), "completed", [1, 3]),
        (Released(), "released", [1, 2, 3]),
        (Modified(True, False), "abandoned", [1, 2, 3]),
        (Modified(True, True), "deferred", [1, 3]),
        (
            Rejected(Error(Symbol("x"), None, {Symbol("DeadLetterReason"): "why"})),
            "dead-lettered: why",
            [1, 3],
        ),
        (Rejected(None), "dead-lettered: None", [1, 3]),
    ],
)
def test_a_message_waits_or_is_settled(queue: FakeQueue, state: Any, fate: str, waiting: list[int]) -> None:
    """I1."""
    queue.settle(2, state)
    assert (queue.fates, queue.waiting, queue.locked) == ({2: fate}, waiting, {})
    queue.settle(2, Accepted())
    assert queue.fates == {2: fate}, "a lock settles once"


def test_numbers_are_given_in_order_and_stamped(queue: FakeQueue) -> None:
    stamped = [section.decode_map(each, section.locate(each).message_annotations) for each in queue.messages.values()]
    assert [each["x-opt-sequence-number"] for each in stamped] == [1, 2, 3]
