"""Why a source that reads a topic is lost, and whether its consumer is usable.

What it is: the errors of one connection, which of them are reported, and the records removed unread; pure. What it is not: the texts
(`failure`), or the reporting thread (`consumer`). Used by the thread of the consumer alone.

Invariants:
    I1. A permanent fault is reported before a temporary one, in any order of occurrence.
    I2. Records removed unread are reported with the fault: once, and no later reader finds them. At the end, when there is no further report,
        they are logged.
    I3. "All brokers down" is ignored within `STALE_SECONDS` after a connection is made: it refers to the time before.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from confluent_kafka import KafkaError

from isthmus.connectors.kafka.cluster import error_of
from isthmus.connectors.kafka.consumer.failure import is_final
from isthmus.errors import ConnectionLostError, EntityNotFoundError, IsthmusError

__all__ = ["STALE_SECONDS", "ConsumerFault"]

_log = logging.getLogger(__name__)

STALE_SECONDS = 2.0


class ConsumerFault:
    """The fault of one source.

    Args:
        topic: its name.
        servers: addresses of the cluster, for errors.
        stops: whether the reader ends.

    Attributes:
        is_spent: whether the consumer must not be used again.
        is_absent: whether the topic did not exist: it may have been deleted, and the offsets read of it are not those of the next one.
    """

    def __init__(self, topic: str, servers: str, stops: Callable[[], bool]) -> None:
        self.is_spent = self.is_absent = False
        self._topic, self._servers = topic, servers
        self._stops = stops
        self._pending: tuple[str, bool] | None = None
        self._connected_at = 0.0

    @property
    def is_useless(self) -> bool:
        """Whether nothing is committed any more."""
        return self.is_spent or self.is_absent

    def connected(self, now: float) -> None:
        """The cluster has answered: earlier errors are void."""
        self._pending = None
        self._connected_at = now

    def lose(self, error: IsthmusError) -> None:
        """The source is lost."""
        is_absent = isinstance(error, EntityNotFoundError) and _name_in(error) == self._topic
        self.is_absent = self.is_absent or is_absent
        if self._pending is None or not error.retryable:
            self._pending = str(error), not error.retryable

    def spend(self, error: IsthmusError | None = None) -> None:
        """The consumer is not used again; `error`: the reason for which the source is lost."""
        self.is_spent = True
        if error is not None:
            self.lose(error)

    def lose_removed(self, text: str) -> None:
        """Records were removed unread; empty: none were."""
        if text and self._stops():
            _log.error("%s", text)
        elif text:
            before, is_fatal = self._pending or ("", False)
            self._pending = f"{before}; {text}" if before else text, is_fatal

    def on_error(self, error: KafkaError, now: float, *, is_of_partition: bool = False) -> None:
        """An error that librdkafka reports apart from records; it recovers by itself, but the owner is told.

        Args:
            error: the error.
            now: monotonic seconds.
            is_of_partition: whether a partition cannot be read; it may not be reported in another way.
        """
        made = error_of(error, self._topic, self._servers)
        if is_final(error):
            self.spend(ConnectionLostError(f"the consumer has failed: {made}"))
            return
        is_stale = now <= self._connected_at + STALE_SECONDS
        if is_of_partition or not made.retryable or (error.code() == KafkaError._ALL_BROKERS_DOWN and not is_stale):
            self.lose(made)

    def take(self) -> tuple[str, bool] | None:
        """The reason for which the source is lost, and whether it is permanent; None: it is not lost. It is reported once."""
        pending, self._pending = self._pending, None
        return pending


def _name_in(error: IsthmusError) -> str:
    """The topic of an error; servers may follow it."""
    return str(error.attributes.get("path") or "").partition(" ")[0]
