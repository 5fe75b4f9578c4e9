"""The entities of a namespace: the catalog in the store and the loaded objects, kept in step.

What it is: loading at the start, reloading after a failed commit, the application of descriptions to queues and
topics, and the lookup by path. What it is not: the management operations (`administration`), or the list of forwarding
queues (`forwarding`).
Spec: docs/explanation/protocol.md, Links, Administration.

Invariants:
    I1. After a restart every entity, message, count and cursor is as of the last synced commit.
    I2. Objects that receivers use stay the same ones through a reload.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from isthmus.clock import Clock
from isthmus.entities.catalog.catalog import Entry, catalog_key, parse_address, unpack_entry
from isthmus.entities.catalog.description import (
    Description,
    EntityStatus,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from isthmus.entities.catalog.key_name import KeyNames
from isthmus.entities.catalog.limit import Limits
from isthmus.entities.catalog.setting import dead_letter_settings, queue_settings, receiving_settings, topic_settings
from isthmus.entities.forwarding import Forwarding
from isthmus.entities.fragment.handover import Handover, Outbox
from isthmus.entities.fragment.partitions import AnyPartitioned, AnyPartitionedQueue, Partitions
from isthmus.entities.fragment.port import FragmentStores
from isthmus.entities.fragment.topic import PartitionedTopic
from isthmus.entities.hub.registry import EventHubs
from isthmus.entities.hybrid_connection import HybridConnections
from isthmus.entities.loaded import LoadedQueue, LoadedSubscription, LoadedTopic, described, rule_of
from isthmus.entities.member.context import Context
from isthmus.entities.port import Entity
from isthmus.entities.queue.intake import Intake
from isthmus.entities.queue.queue import Queue
from isthmus.entities.session.queue import SessionQueue
from isthmus.entities.storage.blob_file import BlobFiles
from isthmus.entities.storage.journal import Journal
from isthmus.entities.storage.key import CATALOG, COUNTER, after, state_key
from isthmus.entities.storage.staging import Staging
from isthmus.entities.storage.upgrade import ensure_format
from isthmus.entities.topic.topic import Topic
from isthmus.errors import EntityNotFoundError

__all__ = ["Registry"]

_log = logging.getLogger(__name__)

_DEAD_LETTER = "/$DeadLetterQueue"
_TRANSFER = "/$Transfer/$DeadLetterQueue"
_M = TypeVar("_M", bound=Intake)


class Registry:
    """The entities of a namespace by name and by number. Arguments as for `engine.Engine`.

    Attributes:
        limits: of the namespace.
        key_names: the queues and topics by the names of their authorization rules.
        hubs: the event hubs.
        hybrid_connections: the hybrid connections.
        catalog_version: another number after each change of a description, and after each reload; it counts from the start of
            this object.
        outbox: the messages that leave the store for others.
        handover: delivers them; None where there are no other stores.
    """

    _outbox_index = 0
    catalog_version = 0

    def __init__(
        self,
        store: Journal,
        clock: Clock,
        limits: Limits,
        random_bytes: Callable[[int], bytes],
        wake: Callable[[Queue, int], None],
        blob_files: BlobFiles | None = None,
        stores: FragmentStores | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._limits = self.limits = limits
        self._staging = Staging(store)
        self._queues: dict[str, LoadedQueue] = {}
        self._topics: dict[str, LoadedTopic] = {}
        self._numbers: dict[int, Intake] = {}
        # The transfer dead-letter queues of those.
        self._transfers: dict[int, Queue] = {}
        self._kept: dict[int, Intake] = {}
        self._forwarding = Forwarding(self._target)
        ensure_format(store, clock.wall_ms(), random_bytes)
        self._context = Context(self._staging, clock, limits, random_bytes, wake, self._transfer_of, blob_files)
        self._context.allocate = self._number
        self.outbox = self._context.outbox = Outbox(
            self._outbox_index,
            self._context,
            lambda number: self._numbers.get(number),  # noqa: PLW0108 - a reload makes a new dictionary
        )
        self._partitions = Partitions(stores, self._staging, limits, self._apply_partitioned)
        self.handover: Handover | None = None
        if stores is not None:
            stores.budget = self._context.budget
            self.handover = Handover(self.outbox, stores, self._partitions.whole)
            self.handover.on_left = self._partitions.sweep
        self._next_number = 1
        self.key_names = KeyNames()
        self._load()
        self.hubs = EventHubs(
            self._staging, clock, limits, lambda name: self._is_plain(name) or name in self.hybrid_connections
        )
        self.hybrid_connections = HybridConnections(
            self._staging, clock, limits, lambda name: self._is_plain(name) or name in self.hubs
        )
        if self.handover is not None:
            self.handover.pump()

    def _is_plain(self, name: str) -> bool:
        """Whether a queue or topic has a name, given in lower case."""
        return name in self._queues or name in self._topics

    # ---- start and failure

    def _load(self) -> None:
        self.outbox.load()
        self._next_number = int(self._store.get(COUNTER) or b"1")
        self._partitions.begin_load()
        first = bytes((CATALOG,))
        for _, value in self._store.scan(first, after(first)):
            self._load_entry(unpack_entry(value))
        for topic in self._topics.values():
            for subscription in topic.subscriptions.values():
                self._apply_subscription(topic, subscription)
        self._partitions.end_load()

    def _load_entry(self, entry: Entry) -> None:
        names = [name.lower() for name in entry.names]
        if entry.kind == "queue":
            self._queues[names[0]] = LoadedQueue(entry, self._make_queue(entry))
            self._apply_queue(self._queues[names[0]])
        elif entry.kind == "topic":
            self._topics[names[0]] = LoadedTopic(entry, self._make_topic(entry))
            self._apply_topic(self._topics[names[0]])
        elif entry.kind == "subscription":
            self._topics[names[0]].subscriptions[names[1]] = LoadedSubscription(entry, self._make_queue(entry))
        else:
            self._topics[names[0]].subscriptions[names[1]].rules[names[2]] = entry

    def _make_topic(self, entry: Entry) -> Topic | PartitionedTopic:
        if entry.fragments:
            return self._partitions.topic(entry, entry.names[0])
        topic = self._member(Topic, entry.names[0], entry.number)
        topic.transfer_dead_letters = None
        self._load_transfer(entry)
        return topic

    def _make_queue(self, entry: Entry) -> Queue | AnyPartitionedQueue:
        path = "/Subscriptions/".join(entry.names)
        if entry.fragments:
            return self._partitions.queue(entry, path)
        sessions = getattr(entry.description, "requires_session", False)
        queue: Queue = self._member(SessionQueue if sessions else Queue, path, entry.number)
        queue.dead_letters = self._member(Queue, path + _DEAD_LETTER, entry.number + 1)
        queue.transfer_dead_letters = None
        self._load_transfer(entry)
        return queue

    # ---- transfer dead-letter queues: created when the first message goes there, or at the first request

    def _load_transfer(self, entry: Entry) -> None:
        number = entry.transfer_number
        if number and (number in self._kept or self._store.get(state_key(number)) is not None):
            self._transfer(entry)

    def _transfer(self, entry: Entry) -> Queue:
        if not entry.transfer_number:  # in a store that an earlier release wrote
            entry.transfer_number = self._number(1)
            self._stage(entry)
        known = self._transfers.get(entry.transfer_number)
        if known is not None:
            return known
        path = "/Subscriptions/".join(entry.names) + _TRANSFER
        queue = self._transfers[entry.transfer_number] = self._member(Queue, path, entry.transfer_number)
        self._numbers[entry.number].transfer_dead_letters = queue
        self._apply_transfer(entry)
        return queue

    def _transfer_of(self, member: Intake) -> Queue:
        return self._transfer(self._find(member.path)[0])

    def _member(self, kind: type[_M], path: str, number: int) -> _M:
        """The object of an entity, as the store has it; one that existed before a reload is kept."""
        state = self._store.get(state_key(number))
        kept = self._kept.get(number)
        if isinstance(kept, kind):
            kept.is_deleted = False
            kept.reload(state)
            member = kept
        else:
            member = kind(path, number, self._context, state)
        self._numbers[number] = member
        self._kept.pop(number, None)
        return member

    # Whether the last load was complete.
    _is_loaded = True

    def _reload(self) -> None:
        """Go back to the state of the store.

        Raises:
            StoreError: it could not be read. All entities stay as they were, for lookups before the next reload:
                forwarding entities must not take their target for deleted, and their scans have to be closed.
        """
        queues, topics, forwarding, key_names = self._queues, self._topics, self._forwarding, self.key_names
        self._is_loaded = True
        self.catalog_version += 1
        self._kept = self._numbers
        self._numbers, self._queues, self._topics, self._forwarding = {}, {}, {}, Forwarding(self._target)
        transfers, self._transfers = self._transfers, {}
        try:
            self._staging.begin_load()
            self.key_names = KeyNames()
            self._context.calendar.reload()
            self._context.blobs.load()
            self._load()
            self.hubs.reload()
            self.hybrid_connections.reload()
        except BaseException:
            self._is_loaded = False
            self._numbers, self._transfers = self._kept | self._numbers, transfers | self._transfers
            self._queues, self._topics, self._forwarding, self.key_names = queues, topics, forwarding, key_names
            raise
        former, self._kept = self._kept, {}
        for member in former.values():
            member.is_deleted = True
        for member in (*former.values(), *self._numbers.values()):
            try:
                member.notify()
            except Exception:  # noqa: BLE001 - a listener's fault must not keep the others waiting, or the store down
                _log.exception("a fault in a listener: entity=%r", member.path)

    # ---- lookup

    def _find(self, path: str) -> tuple[Entry, Entity]:
        address = parse_address(path)
        entry: Entry | None = None
        member: Entity | None = None
        topic = self._topics.get(address.name)
        if address.subscription is not None:
            subscription = topic.subscriptions.get(address.subscription) if topic else None
            if subscription is not None:
                entry, member = subscription.entry, subscription.queue
        elif topic is not None and address.suffix != "dead-letter":
            entry, member = topic.entry, topic.topic
        elif address.name in self._queues:
            queue = self._queues[address.name]
            entry, member = queue.entry, queue.queue
        if address.suffix == "dead-letter" and member is not None and member.source is not None:
            member = member.source.dead_letters
        elif address.suffix == "transfer" and entry is not None:
            fragments = entry.fragments
            member = self._partitions.transfer_dead_letters(entry.number) if fragments else self._transfer(entry)
        elif address.suffix:
            member = None
        if entry is None or member is None:
            raise EntityNotFoundError(path)
        return entry, member

    def _target(self, path: str) -> Intake | AnyPartitioned | None:
        """The queue or topic that others may forward to under this path."""
        queue, topic = self._queues.get(path.lower()), self._topics.get(path.lower())
        return queue.queue if queue is not None else topic.topic if topic is not None else None

    # ---- rows

    def _number(self, count: int) -> int:
        number = self._next_number
        self._next_number += count
        self._staging.batch.put(COUNTER, str(self._next_number).encode())
        return number

    def _entry(self, kind: str, names: tuple[str, ...], description: Description) -> Entry:
        """A new row; an entity gets a number, its dead-letter queue the next, its transfer dead-letter queue the last."""
        now = self._clock.wall_ms()
        entry = Entry(kind, names, 0, now, now, description)
        if kind != "rule":
            count = 2 if kind == "topic" else 3
            self._partition(entry)
            entry.number = self._number(count * max(1, entry.fragments))
            entry.transfer_number = 0 if entry.fragments else entry.number + count - 1
        return entry

    def _partition(self, entry: Entry) -> None:
        """Create the fragments of a new partitioned entity; a subscription uses those of its topic."""
        if entry.kind == "subscription":
            topic = self._topics[entry.names[0].lower()].entry
            entry.fragments, entry.stores = topic.fragments, topic.stores
        elif getattr(entry.description, "enable_partitioning", False):
            entry.fragments = self._limits.partitions_per_entity
            entry.stores = min(entry.fragments, self._limits.partition_stores)

    def _stage(self, entry: Entry) -> None:
        self.catalog_version += 1
        self._staging.batch.put(catalog_key(entry.kind, *entry.names), entry.pack())

    def _unstage(self, entry: Entry) -> None:
        self.catalog_version += 1
        self._staging.batch.delete(catalog_key(entry.kind, *entry.names))

    def _wipe(self, entry: Entry, *members: Intake | AnyPartitioned | None) -> None:
        """Stage the end of an entity, given with its dead-letter queue."""
        whole = [member for member in members if member is not None]
        for member in whole:
            self._forwarding.stop(member)
        if entry.fragments:
            self._partitions.wipe(entry)
            return
        self._transfers.pop(entry.transfer_number, None)
        for number in (*(member.number for member in whole), entry.transfer_number):
            stored = self._numbers.pop(number, None)
            if stored is not None:
                stored.wipe()

    # ---- settings of loaded entities

    def _apply_queue(self, queue: LoadedQueue) -> None:
        settings = described(queue.entry, QueueDescription)
        self.key_names.put(queue.entry.names[0], settings.authorization_rules)
        queue.queue.configure(**queue_settings(settings))
        self._apply_receiving(queue.entry, queue.queue, settings)

    def _apply_receiving(
        self,
        entry: Entry,
        queue: Queue | AnyPartitionedQueue,
        settings: QueueDescription | SubscriptionDescription,
    ) -> None:
        """Apply the settings of its dead-letter queues, and its forwarding."""
        dead_letters = queue.dead_letters
        if dead_letters is not None:
            most = self._limits.max_delivery_count
            dead_letters.configure(**dead_letter_settings(settings.status, queue.lock_duration_ms, most))
        self._apply_transfer(entry)
        self._forwarding.apply(queue, settings.forward_to)
        if dead_letters is not None:
            self._forwarding.apply(dead_letters, settings.forward_dead_lettered_messages_to)

    def _apply_partitioned(self) -> None:
        """Apply the settings of all partitioned entities to their fragments again."""
        for queue in self._queues.values():
            if queue.entry.fragments:
                self._apply_queue(queue)
        for topic in self._topics.values():
            if topic.entry.fragments:
                self._apply_topic(topic)
                for subscription in topic.subscriptions.values():
                    self._apply_subscription(topic, subscription)
        self._pump()

    def _pump(self) -> None:
        """Retry all messages that wait to be forwarded, here or to other stores."""
        self._forwarding.pump()
        if self.handover is not None:
            self.handover.pump()

    def _apply_transfer(self, entry: Entry) -> None:
        known = self._transfers.get(entry.transfer_number)
        queue = self._partitions.transfer_dead_letters(entry.number) if entry.fragments else known
        if queue is not None:
            lock_duration_ms = getattr(entry.description, "lock_duration_ms", 60_000)
            most = self._limits.max_delivery_count
            queue.configure(**dead_letter_settings(EntityStatus.ACTIVE, lock_duration_ms, most))

    def _apply_topic(self, topic: LoadedTopic) -> None:
        settings = described(topic.entry, TopicDescription)
        self.key_names.put(topic.entry.names[0], settings.authorization_rules)
        topic.topic.configure(**topic_settings(settings))
        if topic.entry.fragments:
            self._apply_transfer(topic.entry)

    def _apply_subscription(self, topic: LoadedTopic, subscription: LoadedSubscription) -> None:
        settings = described(subscription.entry, SubscriptionDescription)
        subscription.queue.configure(**receiving_settings(settings))
        self._apply_receiving(subscription.entry, subscription.queue, settings)
        topic.topic.subscribe(
            subscription.entry.names[1].lower(),
            subscription.queue,  # type: ignore[arg-type]  # both are partitioned, or none is
            subscription.compiled.selection(rule_of(entry) for entry in subscription.rules.values()),
            dead_letters_failures=settings.dead_lettering_on_filter_evaluation_exceptions,
        )
