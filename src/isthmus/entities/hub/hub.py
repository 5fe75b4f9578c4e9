"""One event hub: its partitions, and the choice of the one that takes an event.

What it is: acceptance of batches and of single events, by partition, by key, or in rotation. What it is not: the log
(`partition`), the hub's row and its changes (`registry`), or links.
Spec: docs/explanation/protocol.md, Event Hubs.

Invariants:
    I1. A batch goes to one partition as a whole, in order; so do all events of one key.
    I2. A call that raises has staged nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from isthmus.entities.catalog.description import EntityStatus
from isthmus.entities.hub.description import DEFAULT_CONSUMER_GROUP, EventHubDescription
from isthmus.entities.hub.event import Event, EventReader, partition_key_of
from isthmus.entities.hub.partition import Partition
from isthmus.entities.hub.placement import Round, place
from isthmus.entities.storage.staging import Callback, Failure, Staging
from isthmus.errors import (
    ArgumentOutOfRangeError,
    EntityDisabledError,
    EntityNotFoundError,
    MessageTooLargeError,
)

__all__ = ["EventHub"]


# Longer numbers name no partition, and Python refuses to parse very long ones.
_PARTITION_ID_CHARACTERS = 9


class EventHub:
    """One event hub.

    Args:
        name: as it was created.
        staging: the namespace's.
        max_message_size_bytes: the namespace's limit, for a hub without its own.

    Attributes:
        partitions: by partition id, which is the index in the list.
        is_deleted: whether it was deleted.
        taken_total: events taken from producers since the start of the process.
        delivered_total: events handed to consumers, repeats included.
        refused_total: deliveries that were refused.
    """

    def __init__(self, name: str, staging: Staging, max_message_size_bytes: int) -> None:
        self.name = name
        self.partitions: list[Partition] = []
        self.is_deleted = False
        self.taken_total = 0
        self.delivered_total = 0
        self.refused_total = 0
        self.description = EventHubDescription()
        self._staging = staging
        self._default_limit_bytes = max_message_size_bytes
        self._reader = EventReader()
        self._round = Round()

    @property
    def max_message_size_bytes(self) -> int:
        """The limit of one transfer."""
        return (self.description.max_message_size_in_kilobytes or 0) << 10 or self._default_limit_bytes

    def partition(self, partition_id: str) -> Partition:
        """The partition with an id.

        Raises:
            ArgumentOutOfRangeError: there is none.
        """
        count = len(self.partitions)
        if (
            len(partition_id) <= _PARTITION_ID_CHARACTERS
            and partition_id.isascii()
            and partition_id.isdecimal()
            and int(partition_id) < count
        ):
            return self.partitions[int(partition_id)]
        raise ArgumentOutOfRangeError(
            f"The specified partition is invalid for an EventHub partition sender or receiver. It should be between 0 "
            f"and {count - 1}; it is '{partition_id[:64]}'."
        )

    def group(self, name: str) -> str:
        """A consumer group's name as it was created.

        Raises:
            EntityNotFoundError: there is none.
        """
        for group in (DEFAULT_CONSUMER_GROUP, *self.description.consumer_groups):
            if group.lower() == name.lower():
                return group
        raise EntityNotFoundError(f"{self.name}/ConsumerGroups/{name}")

    def check_sendable(self) -> None:
        """Refuse producers of a hub that takes no events.

        Raises:
            EntityNotFoundError: it was deleted.
            EntityDisabledError: its status forbids it.
        """
        if self.is_deleted:
            raise EntityNotFoundError(self.name)
        if self.description.status in (EntityStatus.DISABLED, EntityStatus.SEND_DISABLED):
            raise EntityDisabledError(self.name, self.description.status)

    def check_receivable(self) -> None:
        """Refuse consumers of a hub that gives no events; errors as `check_sendable`."""
        if self.is_deleted:
            raise EntityNotFoundError(self.name)
        if self.description.status in (EntityStatus.DISABLED, EntityStatus.RECEIVE_DISABLED):
            raise EntityDisabledError(self.name, self.description.status)

    # ---- sending

    def accept_batch(
        self,
        envelope: bytes,
        payloads: Sequence[bytes],
        partition: Partition | None = None,
        on_durable: Callback | None = None,
        on_failed: Failure | None = None,
    ) -> None:
        """Take a batch: the events of one envelope, to one partition.

        Args:
            envelope: the transfer as received; its annotations may name the partition key.
            payloads: the events in it, encoded.
            partition: None lets the key, or the rotation, decide.
            on_durable: called once the batch is durable.
            on_failed: called instead if it could not be stored.

        Raises:
            InvalidMessageError: an event is not a message.
            MessageTooLargeError: the envelope is over the limit.
            EntityDisabledError, EntityNotFoundError: the hub takes no events.
        """
        self._check(len(envelope))
        events = self._reader.read(payloads)
        if partition is None:
            key = partition_key_of(envelope) or events[0][0].partition_key
            partition = self._placed(key)
        partition.accept(events)
        self.taken_total += len(events)
        self._staging.promise(on_durable, on_failed)

    def accept(
        self,
        payloads: Sequence[bytes],
        partition: Partition | None = None,
        on_durable: Callback | None = None,
        on_failed: Failure | None = None,
    ) -> None:
        """Take single events as one atomic unit, each to its partition; otherwise as `accept_batch`."""
        self._check(max(map(len, payloads), default=0))
        events = self._reader.read(payloads)
        if partition is not None:
            partition.accept(events)
        else:
            for index, each in self._spread(events).items():
                self.partitions[index].accept(each)
        self.taken_total += len(events)
        self._staging.promise(on_durable, on_failed)

    def _check(self, size_bytes: int) -> None:
        self.check_sendable()
        if size_bytes > self.max_message_size_bytes:
            raise MessageTooLargeError(size_bytes, self.max_message_size_bytes)

    def _placed(self, key: str | None) -> Partition:
        count = len(self.partitions)
        return self.partitions[self._round.take(count) if key is None else place(key, count)]

    def _spread(self, events: list[Event]) -> dict[int, list[Event]]:
        count = len(self.partitions)
        spread: dict[int, list[Event]] = {}
        for event in events:
            key = event[0].partition_key
            index = self._round.take(count) if key is None else place(key, count)
            spread.setdefault(index, []).append(event)
        return spread

    def statistics(self) -> dict[str, int]:
        """Events, size and receivers of all partitions together, for metrics."""
        parts = [partition.statistics() for partition in self.partitions]
        return {
            "partition_count": len(parts),
            **{name: sum(part[name] for part in parts) for name in ("event_count", "size_bytes", "listeners")},
        }
