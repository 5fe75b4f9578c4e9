"""Why a source that reads a topic is lost, and whether its consumer is of use.

What it is: the errors of one connection, what of them is told, and what was removed unread beside them; pure. What it is not: their texts
(`failure`), or the thread that tells them (`consumer`). Used by the thread of the consumer alone.

Invariants:
    I1. A permanent fault is told before one that may pass, whichever came first.
    I2. What was removed unread is told beside the fault: it is told once, and no reader finds it again. At the end, when nobody asks any more,
        it is logged.
    I3. That all brokers are down says nothing within `STALE_SECONDS` after a connection is made: it is of the time before.
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
    """That of one source.

    Args:
        topic: its name.
        servers: addresses of the cluster, for errors.
        stops: whether the reader ends.

    Attributes:
        is_spent: whether the consumer is not to be used again.
        is_absent: whether the topic was not there: it may have been deleted, and what was read of it is no offset of the next one.
    """

    def __init__(self, topic: str, servers: str, stops: Callable[[], bool]) -> None:
        self.is_spent = self.is_absent = False
        self._topic, self._servers = topic, servers
        self._stops = stops
        self._told: tuple[str, bool] | None = None
        self._connected_at = 0.0

    @property
    def is_useless(self) -> bool:
        """Whether nothing is committed any more."""
        return self.is_spent or self.is_absent

    def connected(self, now: float) -> None:
        """The cluster has answered: what was wrong before says nothing."""
        self._told = None
        self._connected_at = now

    def lose(self, error: IsthmusError) -> None:
        """The source is lost."""
        is_absent = isinstance(error, EntityNotFoundError) and _name_in(error) == self._topic
        self.is_absent = self.is_absent or is_absent
        if self._told is None or not error.retryable:
            self._told = str(error), not error.retryable

    def spend(self, error: IsthmusError | None = None) -> None:
        """The consumer is not used again; `error`: for which the source is lost."""
        self.is_spent = True
        if error is not None:
            self.lose(error)

    def lose_removed(self, text: str) -> None:
        """Something was removed unread; empty: nothing was."""
        if text and self._stops():
            _log.error("%s", text)
        elif text:
            before, is_fatal = self._told or ("", False)
            self._told = f"{before}; {text}" if before else text, is_fatal

    def heard(self, error: KafkaError, now: float) -> None:
        """What librdkafka tells beside the records; it goes on by itself, but the owner has to know."""
        made = error_of(error, self._topic, self._servers)
        if is_final(error):
            self.spend(ConnectionLostError(f"the consumer is spent: {made}"))
            return
        is_stale = now <= self._connected_at + STALE_SECONDS
        if not made.retryable or (error.code() == KafkaError._ALL_BROKERS_DOWN and not is_stale):
            self.lose(made)

    def take(self) -> tuple[str, bool] | None:
        """What the source is lost for, and whether that is permanent; None: it is not lost. It is told once."""
        told, self._told = self._told, None
        return told


def _name_in(error: IsthmusError) -> str:
    """The topic that an error is about; servers may follow it."""
    return str(error.attributes.get("path") or "").partition(" ")[0]
