"""The ends of partitions, and the start of a group at the latest records.

What it is: the query of a group's offsets, and the first offsets of a group without any. What it is not: the setting
`auto.offset.reset`, which is `earliest` for any `start`: librdkafka also uses it where the offset of the group, or the one that is
read next, no longer exists, and would skip all remaining records.
Specification: librdkafka documentation, `auto.offset.reset`.

One reader of a group, that of partition 0, commits the ends of all partitions, in one request. The others wait for
that: with separate commits, one of two readers that start together would find the offsets of the other, and treat its own partitions as
added since.

Invariants:
    I1. Only a group without an offset of the topic begins at the ends; nothing is read while that is unknown.
    I2. A partition that was added since is read from its first record, also if it was added while no reader ran.
    I3. Nothing is read before the ends are committed: a reader after a kill would begin after the records written meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from isthmus.connectors.kafka.cluster import QUERY_SECONDS

__all__ = ["begin_group", "ends_of_all"]

_AGAIN_SECONDS = 0.2


def begin_group(
    consumer: Any,
    topic: str,
    partitions: Sequence[int],
    known: int,
    commit: Callable[[Any, Mapping[int, int]], None],
    stops: Callable[[], bool] = lambda: False,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[int, int]:
    """By partition, the offset to begin at; empty where the group has begun before. Blocks for `QUERY_SECONDS` for each request.

    Args:
        consumer: of the group.
        topic: its name.
        partitions: the assigned partitions.
        known: how many there were when the topic was first opened.
        commit: commits offsets of a consumer, and waits for the answer.
        stops: whether the reader has to end.
        clock: a clock, in seconds.
        sleep: called between two requests.

    Raises:
        KafkaException: no answer, or a refusal, or another reader has not begun the group in time.
    """
    asked = sorted({*range(known), *partitions})
    deadline = clock() + QUERY_SECONDS
    while not _has_begun(consumer, topic, asked):
        if 0 in partitions:
            ends = ends_of_all(consumer, topic, known)
            commit(consumer, ends)
            return {number: ends[number] for number in partitions if number in ends}
        if stops() or clock() >= deadline:
            text = "the group's reader of partition 0 has not committed where the group begins; has it another 'start'?"
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, text))
        sleep(_AGAIN_SECONDS)
    return {}


def _has_begun(consumer: Any, topic: str, partitions: Sequence[int]) -> bool:
    found = consumer.committed([TopicPartition(topic, number) for number in partitions], timeout=QUERY_SECONDS)
    for each in found:
        if each.error is not None:
            raise KafkaException(each.error)
    return any(each.offset >= 0 for each in found)


def ends_of_all(consumer: Any, topic: str, partitions: int) -> dict[int, int]:
    """By partition, the offset after its last record; blocks for `QUERY_SECONDS` for each request.

    Raises:
        KafkaException: no answer, or a refusal.
    """
    topic_partitions = [TopicPartition(topic, number) for number in range(partitions)]
    return {
        each.partition: int(consumer.get_watermark_offsets(each, timeout=QUERY_SECONDS)[1]) for each in topic_partitions
    }
