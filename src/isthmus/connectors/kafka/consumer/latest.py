"""The ends of partitions, the start of a group at the latest records, and a start at an offset whose leader epoch is compared with the log.

What it is: the query of a group's offsets, the first offsets of a group without any, and the `seek` for the comparison. What it is not: the setting
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
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from confluent_kafka import OFFSET_END, KafkaError, KafkaException, TopicPartition

from isthmus.connectors.kafka.cluster import QUERY_SECONDS, CoordinatorAwayError, error_of

__all__ = ["Ends", "begin_group", "ends_of_all", "positions_of", "seek_all"]

_AGAIN_SECONDS = 0.2


class Ends(NamedTuple):
    """The ends of the partitions of a topic.

    Attributes:
        offsets: by partition, the offset after its last record.
        epochs: the leader epochs of these; -1: the cluster does not report them.
    """

    offsets: dict[int, int]
    epochs: dict[int, int]


def begin_group(
    consumer: Any,
    topic: str,
    partitions: Sequence[int],
    known: int,
    commit: Callable[[Any, Mapping[int, int], Mapping[int, int]], None],
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
        commit: commits offsets of a consumer with their leader epochs, and waits for the answer.
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
            ends, epochs = ends_of_all(consumer, topic, range(known))
            commit(consumer, ends, epochs)
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


def positions_of(
    consumer: Any,
    topic: str,
    partitions: Iterable[int],
    stops: Callable[[], bool] = lambda: False,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> list[Any]:
    """The group's offsets in these partitions; waits for a coordinator that is being elected. Blocks for twice `QUERY_SECONDS` at most.

    Args:
        consumer: of the group.
        topic: its name.
        partitions: which.
        stops: whether the reader has to end.
        clock: a clock, in seconds.
        sleep: called between two requests.

    Raises:
        KafkaException: no answer, or a refusal.
    """
    asked = [TopicPartition(topic, number) for number in partitions]
    deadline = clock() + QUERY_SECONDS
    while True:
        try:
            found: list[Any] = consumer.committed(asked, timeout=QUERY_SECONDS)
            for each in found:
                if each.error is not None:
                    raise KafkaException(each.error)
            return found
        except KafkaException as error:
            is_away = isinstance(error_of(error.args[0], topic), CoordinatorAwayError)
            if not is_away or stops() or clock() >= deadline:
                raise
        sleep(_AGAIN_SECONDS)


def ends_of_all(consumer: Any, topic: str, partitions: Iterable[int]) -> Ends:
    """The ends of these partitions; blocks for `QUERY_SECONDS`.

    Raises:
        KafkaException: no answer, or a refusal.
    """
    asked = [TopicPartition(topic, number, OFFSET_END) for number in partitions]
    found = consumer.offsets_for_times(asked, timeout=QUERY_SECONDS)
    refused = next((each.error for each in found if each.error is not None), None)
    if refused is not None:
        raise KafkaException(refused)
    epochs = {each.partition: -1 if each.leader_epoch is None else each.leader_epoch for each in found}
    return Ends({each.partition: each.offset for each in found}, epochs)


def seek_all(
    consumer: Any,
    places: Iterable[TopicPartition],
    stops: Callable[[], bool] = lambda: False,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Has librdkafka compare the leader epochs of offsets with the log, and begin where they differ, if that is before the offset.

    Args:
        consumer: to which the partitions were just assigned.
        places: the offsets, with their leader epochs.
        stops: whether the reader has to end.
        clock: a clock, in seconds.
        sleep: called between two calls.

    Raises:
        KafkaException: a partition cannot be sought.
    """
    deadline = clock() + QUERY_SECONDS
    for each in places:
        while True:
            try:
                consumer.seek(each)
                break
            except KafkaException as error:  # its reading has not begun, while that of others has not ended
                if error.args[0].code() != KafkaError._STATE or stops() or clock() >= deadline:
                    raise
            sleep(_AGAIN_SECONDS)
