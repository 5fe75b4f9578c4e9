"""Where partitions end, and where a group that begins with the latest records begins, in those of which it has no offset.

What it is: the question where the group is, and the ends of the partitions where it is nowhere. What it is not: the setting
`auto.offset.reset`, which says `earliest` whatever `start` is: librdkafka uses it also where the offset of the group, or the one that is
read next, does not exist any more, and would pass over all that is left.
Specification: librdkafka documentation, `auto.offset.reset`.

Invariants:
    I1. Only a partition of which the group has no offset is read from its end; nothing is read where that is not known.
    I2. A partition that was added since is read from its first record.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from confluent_kafka import KafkaException, TopicPartition

from isthmus.connectors.kafka.cluster import LOOK_SECONDS

__all__ = ["ends_of_all", "ends_of_new"]


def ends_of_new(consumer: Any, topic: str, partitions: Sequence[int], known: int) -> dict[int, int]:
    """By partition, the offset to begin at where the group has none; blocks for `LOOK_SECONDS` for each question.

    Args:
        consumer: of the group.
        topic: its name.
        partitions: those that are assigned.
        known: how many there were when the topic was opened first.

    Raises:
        KafkaException: no answer, or a refusal.
    """
    found: dict[int, int] = {}
    for each in consumer.committed([TopicPartition(topic, number) for number in partitions], timeout=LOOK_SECONDS):
        if each.error is not None:
            raise KafkaException(each.error)
        if each.offset < 0 and each.partition < known:
            place = TopicPartition(topic, each.partition)
            found[each.partition] = int(consumer.get_watermark_offsets(place, timeout=LOOK_SECONDS)[1])
    return found


def ends_of_all(consumer: Any, topic: str, partitions: int) -> dict[int, int]:
    """By partition, behind its last offset; blocks for `LOOK_SECONDS` for each question.

    Raises:
        KafkaException: no answer, or a refusal.
    """
    places = [TopicPartition(topic, number) for number in range(partitions)]
    return {each.partition: int(consumer.get_watermark_offsets(each, timeout=LOOK_SECONDS)[1]) for each in places}
