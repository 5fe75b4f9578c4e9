"""The event hubs of a namespace: created, changed, deleted, found, with their retention applied.

What it is: the rows in the store and their hub objects, kept in step. What it is not: queues and topics, whose names are in
the same set (`isthmus.entities.administration`).
Spec: docs/explanation/protocol.md, Event Hubs; quotas of the service's premium tier for the limits.

Invariants:
    I1. After a restart, and after a failed commit, every hub, event and number is as of the last synced commit.
    I2. Objects that receivers use stay the same ones through a reload.
    I3. A number of a partition is never assigned twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from isthmus.clock import Clock
from isthmus.entities.catalog.catalog import check_name
from isthmus.entities.catalog.key_name import KeyNames
from isthmus.entities.catalog.limit import Limits
from isthmus.entities.hub.block import BlockCache
from isthmus.entities.hub.description import DEFAULT_CONSUMER_GROUP, EventHubDescription, HubRow
from isthmus.entities.hub.hub import EventHub
from isthmus.entities.hub.key import COUNTER, hub_key, hub_span
from isthmus.entities.hub.partition import Partition
from isthmus.entities.storage.staging import Staging
from isthmus.errors import (
    EntityExistsError,
    EntityNotFoundError,
    InvalidArgumentError,
    QuotaExceededError,
    StoreError,
)

__all__ = ["EventHubs"]

_RETENTION_CHECK_MS = 1000


class EventHubs:
    """The event hubs of one namespace.

    Args:
        staging: the namespace's.
        clock: wall and monotonic time.
        limits: of the namespace.
        is_taken: whether a queue or topic has a name, given in lower case.

    Attributes:
        due_ms: wall time of the next check of retention; None while there are no hubs.
        key_names: the hubs by the names of their authorization rules.
    """

    def __init__(self, staging: Staging, clock: Clock, limits: Limits, is_taken: Callable[[str], bool]) -> None:
        self._staging = staging
        self._clock = clock
        self._limits = limits
        self._is_taken = is_taken
        self._cache = BlockCache(limits.hub_cache_bytes)
        self._rows: dict[str, HubRow] = {}
        self._hubs: dict[str, EventHub] = {}
        self._partitions: dict[int, Partition] = {}
        # The hubs from before a reload, during it.
        self._kept_hubs: dict[str, EventHub] = {}
        self._kept_partitions: dict[int, Partition] = {}
        self._next_number = 1
        self.key_names = KeyNames()
        self.due_ms: int | None = None
        self._load()

    # ---- start and failure

    def _load(self) -> None:
        self._next_number = int(self._staging.journal.get(COUNTER) or b"1")
        for _, value in self._staging.journal.scan(*hub_span()):
            row = HubRow.unpack(value)
            self._rows[row.name.lower()] = row
            self._apply(row)

    def reload(self) -> None:
        """Go back to the state of the store, after a failed commit.

        Raises:
            StoreError: it could not be read. All hubs stay as they were, for lookups before the next reload.
        """
        rows, former, known, key_names = self._rows, self._hubs, self._partitions, self.key_names
        self._cache.clear()
        self._rows, self._hubs, self._partitions = {}, {}, {}
        self.key_names = KeyNames()
        self._kept_hubs, self._kept_partitions = former, known
        try:
            self._load()
        except BaseException:
            self._rows, self._hubs, self._partitions, self.key_names = rows, former, known, key_names
            self._kept_hubs, self._kept_partitions = {}, {}
            raise
        for name, hub in former.items():
            hub.is_deleted = self._hubs.get(name) is not hub
        for number, partition in known.items():
            partition.is_deleted = self._partitions.get(number) is not partition
        self._kept_hubs, self._kept_partitions = {}, {}

    def _apply(self, row: HubRow) -> EventHub:
        """The hub object of a row, with the row's settings."""
        key = row.name.lower()
        hub = self._hubs.get(key) or self._kept_hubs.get(key)
        if hub is None:
            hub = EventHub(row.name, self._staging, self._limits.max_message_size_bytes)
        hub.description = row.description
        hub.partitions = [self._partition(row, index) for index in range(len(row.numbers))]
        self._hubs[key] = hub
        self.key_names.put(row.name, row.description.authorization_rules)
        self.due_ms = self.due_ms or 0
        return hub

    def _partition(self, row: HubRow, index: int) -> Partition:
        number = row.numbers[index]
        partition = self._partitions.get(number)
        if partition is None:
            partition = self._kept_partitions.get(number)
            if partition is None:
                path = f"{row.name}/Partitions/{index}"
                partition = Partition(number, path, self._staging, self._clock, self._cache)
            else:
                partition.reload()
            self._partitions[number] = partition
        megabytes = row.description.partition_retention_in_megabytes
        partition.configure(row.description.message_retention_ms, (megabytes or 0) << 20)
        return partition

    # ---- lookup

    def __len__(self) -> int:
        return len(self._hubs)

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._hubs

    def find(self, name: str) -> EventHub | None:
        """The hub of a name in any case; None if there is none."""
        return self._hubs.get(name.lower())

    def get(self, name: str) -> EventHubDescription | None:
        """A hub's description; None if there is no such hub."""
        row = self._rows.get(name.lower())
        return row.description if row else None

    def row(self, name: str) -> HubRow:
        """A hub's row.

        Raises:
            EntityNotFoundError: no such hub.
        """
        row = self._rows.get(name.lower())
        if row is None:
            raise EntityNotFoundError(name)
        return row

    def members(self) -> list[EventHub]:
        """The hubs that exist."""
        return list(self._hubs.values())

    def names(self) -> list[str]:
        """The hubs' names as created, ordered by lower-case name."""
        return [row.name for _, row in sorted(self._rows.items())]

    # ---- changes

    def create(self, name: str, description: EventHubDescription | None = None) -> EventHubDescription:
        """Create a hub; durable with the next commit.

        Raises:
            EntityExistsError: a hub, queue or topic of that name exists.
            InvalidArgumentError: the name or a setting is not allowed.
        """
        if name in self or self._is_taken(name.lower()):
            raise EntityExistsError(name)
        check_name("event hub", name, self._limits.max_entity_name_characters)
        if "/" in name:
            raise InvalidArgumentError(
                f"The event hub name '{name}' contains a '/', which names of event hubs may not contain."
            )
        made = replace(description or EventHubDescription())
        self._check(made)
        now_ms = self._clock.wall_ms()
        row = HubRow(name, self._numbers(made.partition_count), now_ms, now_ms, made)
        self._rows[name.lower()] = row
        with self._staging.whole(begun=True):  # a new partition reads its state from the store
            self._apply(row)
            self._staging.batch.put(hub_key(name), row.pack())
        return made

    def update(self, name: str, description: EventHubDescription) -> EventHubDescription:
        """Replace a hub's description. Partitions can be added, which moves keys to other partitions.

        Raises:
            EntityNotFoundError: no such hub.
            InvalidArgumentError: a setting is not allowed, or the number of partitions would decrease.
        """
        row = self.row(name)
        made = replace(description)
        self._check(made)
        more = made.partition_count - len(row.numbers)
        if more < 0:
            raise InvalidArgumentError(
                f"'{row.name}' has {len(row.numbers)} partitions, which cannot be reduced; "
                f"{made.partition_count} were asked for."
            )
        row.numbers += self._numbers(more)
        row.description = made
        row.updated_at_ms = self._clock.wall_ms()
        with self._staging.whole(begun=True):  # as above
            self._apply(row)
            self._staging.batch.put(hub_key(name), row.pack())
        return made

    def delete(self, name: str) -> None:
        """Remove a hub with its events.

        Raises:
            EntityNotFoundError: no such hub.
        """
        row = self.row(name)
        del self._rows[name.lower()]
        self.key_names.remove(name)
        hub = self._hubs.pop(name.lower())
        hub.is_deleted = True
        for partition in hub.partitions:
            partition.wipe()
            self._partitions.pop(partition.number, None)
        self._staging.batch.delete(hub_key(row.name))
        if not self._hubs:
            self.due_ms = None

    def _numbers(self, count: int) -> list[int]:
        first = self._next_number
        self._next_number += count
        if count:
            self._staging.batch.put(COUNTER, str(self._next_number).encode())
        return list(range(first, first + count))

    def _check(self, description: EventHubDescription) -> None:
        limits = self._limits
        _check_range("PartitionCount", description.partition_count, 1, limits.max_partitions_per_event_hub)
        _check_range("MessageRetention (ms)", description.message_retention_ms, 1, limits.max_event_retention_ms)
        if description.partition_retention_in_megabytes is not None:
            _check_range("PartitionRetentionInMegabytes", description.partition_retention_in_megabytes, 1, 1 << 30)
        if description.max_message_size_in_kilobytes is not None:
            _check_range("MaxMessageSizeInKilobytes", description.max_message_size_in_kilobytes, 1, 102_400)
        seen = {DEFAULT_CONSUMER_GROUP.lower()}
        groups = []
        for group in description.consumer_groups:
            if group.lower() == DEFAULT_CONSUMER_GROUP.lower():
                continue
            check_name("subscription", group, limits.max_subscription_name_characters)
            if group.lower() in seen:
                raise InvalidArgumentError(f"The consumer group '{group}' is named twice.")
            seen.add(group.lower())
            groups.append(group)
        if len(seen) > limits.max_consumer_groups_per_event_hub:
            raise QuotaExceededError(
                f"{len(seen)} consumer groups with {DEFAULT_CONSUMER_GROUP}; an event hub may have "
                f"{limits.max_consumer_groups_per_event_hub}."
            )
        description.consumer_groups = groups
        described = {name: text for name, text in description.consumer_group_metadata.items() if name in seen}
        for text in (description.user_metadata or "", *described.values()):
            _check_range("UserMetadata (characters)", len(text), 0, limits.max_user_metadata_characters)
        description.consumer_group_metadata = described

    # ---- time

    def tick(self, now_ms: int) -> None:
        """Remove events past their retention; checks every partition at most once a second.

        Raises:
            StoreError: a partition could not be read; the others were processed.
        """
        # A check that is due in more than its interval was set before the clock was set back.
        if self.due_ms is None or self.due_ms - _RETENTION_CHECK_MS <= now_ms < self.due_ms:
            return
        self.due_ms = now_ms + _RETENTION_CHECK_MS
        unread: StoreError | None = None
        for partition in self._partitions.values():
            if partition.is_over(now_ms):
                try:
                    partition.retain(now_ms)
                except StoreError as error:  # the others must not grow without limit meanwhile
                    unread = error
        if unread is not None:
            raise unread

    def statistics(self) -> dict[str, dict[str, int]]:
        """Counts of every hub by name, for metrics."""
        return {hub.name: hub.statistics() for hub in self._hubs.values()}


def _check_range(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise InvalidArgumentError(f"{name} is {value}; {low} to {high} is allowed.")
