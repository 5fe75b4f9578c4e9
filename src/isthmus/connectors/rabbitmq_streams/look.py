"""Queries of streams, for administration and driver.

What it is: the last message of a stream, and the number of messages from an offset on. Calls block. What it is not: the browsing
(`isthmus.connectors.rabbitmq.port.stream`).
"""

from __future__ import annotations

from collections.abc import Mapping

from isthmus.connectors.rabbitmq.option import read_broker
from isthmus.connectors.rabbitmq.port.stream import first_offset, last_record
from isthmus.connectors.rabbitmq_streams.option import BROKER_NAMES
from isthmus.connectors.rabbitmq_streams.record import digest_of
from isthmus.errors import OperationTimeoutError

__all__ = ["broker_options", "count_from", "last_of"]


def broker_options(options: Mapping[str, str]) -> dict[str, str]:
    """The options that reach the broker."""
    return {name: value for name, value in options.items() if name in BROKER_NAMES}


def last_of(options: Mapping[str, str], stream: str) -> tuple[int, str]:
    """Offset and digest of the last message of a stream; -1 where none arrived: it is empty, or not ready.

    Raises:
        IsthmusError: no answer, or a refusal.
    """
    offset, record = last_record(read_broker(broker_options(options)), stream)
    return offset, digest_of(record) if record is not None else ""


def count_from(options: Mapping[str, str], stream: str, start: int, last: int) -> int:
    """How many offsets there are from `start` to the last, without those that the retention removed.

    Raises:
        IsthmusError: no answer, or a refusal.
    """
    if last < start:
        return 0
    try:
        first = first_offset(read_broker(broker_options(options)), stream, start)
    except OperationTimeoutError:  # the retention has removed the next messages
        first = start
    return last + 1 - first
