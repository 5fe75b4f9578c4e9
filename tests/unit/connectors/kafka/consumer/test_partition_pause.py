"""isthmus.connectors.kafka.consumer.partition_pause: when a consumer without credit pauses its partitions."""

from __future__ import annotations

from typing import Any

from isthmus.connectors.kafka.consumer.partition_pause import PAUSE_SECONDS, PartitionPause


class Consumer:
    """Notes what is asked of it."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, list[int]]] = []

    def pause(self, partitions: list[Any]) -> None:
        self.asked.append(("pause", sorted(each.partition for each in partitions)))

    def resume(self, partitions: list[Any]) -> None:
        self.asked.append(("resume", sorted(each.partition for each in partitions)))


def test_nothing_is_paused_before_there_has_been_no_credit_for_a_while() -> None:
    """I1."""
    consumer, pause = Consumer(), PartitionPause("t")
    assert not pause.pause(consumer, [0, 1], 10.0)
    assert pause.waits
    assert not pause.pause(consumer, [0, 1], 10.0 + 0.9 * PAUSE_SECONDS)
    pause.resume(consumer, [0, 1])  # there was credit: the time starts again
    assert not pause.waits
    assert not pause.pause(consumer, [0, 1], 20.0)
    assert consumer.asked == []
    assert pause.pause(consumer, [0, 1], 20.0 + PAUSE_SECONDS)
    assert pause.pause(consumer, [0, 1, 2], 21.0 + PAUSE_SECONDS)
    pause.resume(consumer, [0, 1, 2])
    assert consumer.asked == [("pause", [0, 1]), ("pause", [2]), ("resume", [0, 1, 2])]


def test_a_partition_that_is_handed_over_is_not_left_paused() -> None:
    """I2."""
    consumer, pause = Consumer(), PartitionPause("t")
    pause.pause(consumer, [0, 1], 10.0)
    pause.pause(consumer, [0, 1], 20.0)
    pause.leave(consumer, [1, 5])
    pause.forget([1, 5])
    pause.resume(consumer, [0])
    assert consumer.asked == [("pause", [0, 1]), ("resume", [1]), ("resume", [0])]
