"""The partitioned entities of a namespace: created, kept through failures, and removed from all of their stores.

What it is: fragments found for an entity's row in the catalog, put into their slots when their store is up, and the removal of
the rows of deleted entities. What it is not: the catalog (`registry`), or the behaviour of an entity.
Spec: docs/explanation/protocol.md, Entities; docs/explanation/partitions.md.

Invariants:
    I1. The catalog decides: an entity exists if and only if its row does, whatever its stores contain.
    I2. The messages of a deleted entity are removed after its deletion is durable, also from a store that was down at the time;
        until they are removed everywhere, a row in the catalog's store records the removal.
    I3. Objects that receivers use stay the same ones through a reload.
    I4. A read of a fragment that fails takes its store down, and nothing else: not the catalog's start or reload.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeVar

from isthmus.entities.catalog.catalog import Entry
from isthmus.entities.catalog.limit import Limits
from isthmus.entities.fragment.message_key import first_of
from isthmus.entities.fragment.port import FragmentEngine, FragmentStore, FragmentStores
from isthmus.entities.fragment.queue import TRANSFER, PartitionedQueue
from isthmus.entities.fragment.session import PartitionedSessionQueue
from isthmus.entities.fragment.topic import PartitionedTopic
from isthmus.entities.member.listener import call_all
from isthmus.entities.queue.intake import Intake
from isthmus.entities.queue.queue import Queue
from isthmus.entities.session.queue import SessionQueue
from isthmus.entities.storage.key import DOOMED, after, doomed_key
from isthmus.entities.storage.staging import Staging
from isthmus.entities.topic.topic import Topic
from isthmus.errors import StoreError

__all__ = ["AnyPartitioned", "AnyPartitionedQueue", "Partitions"]

AnyPartitionedQueue = PartitionedQueue | PartitionedSessionQueue
AnyPartitioned = AnyPartitionedQueue | PartitionedTopic

_E = TypeVar("_E", PartitionedQueue, PartitionedSessionQueue, PartitionedTopic)
_DEAD_LETTER = "/$DeadLetterQueue"


class _Shape(NamedTuple):
    """The fragments of an entity in the stores.

    Attributes:
        number: of the first fragment.
        kind: `topic`, `queue` or `sessions`.
        fragments: how many.
        stores: over how many stores they are spread, in rotation.
    """

    number: int
    kind: str
    fragments: int
    stores: int

    @property
    def step(self) -> int:
        """The difference between the numbers of two neighbouring fragments."""
        return numbers_of_fragment(self.kind)


def _parts(member: Intake, engine: FragmentEngine) -> list[Intake]:
    """A fragment and its dead-letter queues."""
    return [*member.parts(), engine.transfers[member.number]]


def _with_dead_letters(entity: AnyPartitioned) -> list[AnyPartitioned]:
    """An entity and its dead-letter queues: each of them has receivers of its own."""
    dead = None if isinstance(entity, PartitionedTopic) else entity.dead_letters
    return [each for each in (entity, dead, entity.transfer_dead_letters) if each is not None]


def _stays(error: Exception) -> None:
    """A failed removal is repeated when the store is up again."""


def numbers_of_fragment(kind: str) -> int:
    """How many numbers of the catalog's counter each fragment uses: for itself and its dead-letter queues."""
    return 2 if kind == "topic" else 3


class Partitions:
    """The partitioned entities of one namespace.

    Args:
        stores: of fragments; None where the namespace has none.
        staging: of the catalog's store.
        limits: of the namespace.
        settle: applies the settings of all partitioned entities again: a store was reloaded or opened.
    """

    def __init__(
        self, stores: FragmentStores | None, staging: Staging, limits: Limits, settle: Callable[[], None]
    ) -> None:
        self.stores = stores
        self._staging = staging
        self._limits = limits
        self._settle = settle
        self._entities: dict[int, AnyPartitioned] = {}
        self._shapes: dict[int, _Shape] = {}
        self._loading: dict[int, AnyPartitioned] | None = None
        self._has_loaded = False
        # Entities to be removed, by number: which of their fragments are removed already.
        self._doomed: dict[int, tuple[_Shape, set[int]]] = {}
        if stores is not None:
            stores.on_back = self._on_store

    # ---- start and failure of the catalog's store

    def begin_load(self) -> None:
        """The catalog is about to be read."""
        self._loading = {}
        self._doomed.clear()

    def end_load(self) -> None:
        """The catalog was read: entities that it does not name are dropped, and deletions that it names are done.

        After a failure, the rows in the store need not be durable: a store without room is read as it is. Entities and
        deletions found then take effect with the next commit.
        """
        loaded, self._loading = self._loading or {}, None
        for number, entity in self._entities.items():
            if number not in loaded:
                self._drop(entity)
        self._entities = loaded
        self._shapes = {number: shape for number, shape in self._shapes.items() if number in loaded}
        for entity in list(loaded.values()):
            if entity.is_durable or not self._has_loaded:
                entity.set_durable()
            else:
                self._staging.confirm(entity.set_durable)
        for _, value in self._staging.journal.scan(DOOMED, after(DOOMED)):
            shape = _Shape(*json.loads(value))
            self._doomed[shape.number] = (shape, set())
        if self._has_loaded:
            self._staging.confirm(self._sweep)
        else:
            self._sweep()
        self._has_loaded = True

    def _drop(self, entity: AnyPartitioned) -> None:
        """Drop an entity without a row in the catalog: one that never existed has nothing, for others a row names the removal."""
        for slot in entity.slots:
            if not entity.is_durable and slot.store.engine is not None and slot.member is not None:
                for part in _parts(slot.member, slot.store.engine):
                    slot.store.engine.forget(part)
        self._end(entity)

    # ---- entities

    def queue(self, entry: Entry, path: str) -> AnyPartitionedQueue:
        """The queue or subscription of a row; it exists when the row is durable."""
        sessions = bool(getattr(entry.description, "requires_session", False))
        shape = _Shape(entry.number, "sessions" if sessions else "queue", entry.fragments, entry.stores)
        if sessions:
            return self._kept(shape, PartitionedSessionQueue) or self._made(shape, PartitionedSessionQueue, path)
        return self._kept(shape, PartitionedQueue) or self._made(shape, PartitionedQueue, path)

    def topic(self, entry: Entry, path: str) -> PartitionedTopic:
        """The topic of a row; it exists when the row is durable."""
        shape = _Shape(entry.number, "topic", entry.fragments, entry.stores)
        return self._kept(shape, PartitionedTopic) or self._made(shape, PartitionedTopic, path)

    def _kept(self, shape: _Shape, kind: type[_E]) -> _E | None:
        """The entity that existed before the catalog was loaded again."""
        kept = None if self._loading is None else self._entities.get(shape.number)
        if self._loading is None or not isinstance(kept, kind):
            return None
        for each in _with_dead_letters(kept):
            each.is_deleted = False
        self._loading[shape.number] = kept
        self._fill(shape, kept)
        return kept

    def _made(self, shape: _Shape, kind: type[_E], path: str) -> _E:
        entity = kind(path, shape.number, self._stores_of(shape), self._limits)
        self._shapes[shape.number] = shape
        if self._loading is None:
            self._entities[shape.number] = entity
            self._staging.promise(entity.set_durable, None)
        else:
            self._loading[shape.number] = entity
        self._fill(shape, entity)
        return entity

    def _stores_of(self, shape: _Shape) -> list[FragmentStore]:
        stores = self.stores
        if stores is None:
            raise StoreError("The store has partitioned entities, but the namespace has no stores for fragments.")
        return [stores.get(index % shape.stores) for index in range(shape.fragments)]

    def _fill(self, shape: _Shape, entity: AnyPartitioned) -> None:
        """Put the fragments of running stores into their slots; a store that cannot be read for one is down (I4)."""
        for slot in entity.slots:
            engine = slot.store.engine
            if engine is None or not slot.store.is_up or (slot.member is not None and not slot.member.is_deleted):
                continue
            try:
                member = self._member(shape, entity.path, slot.index, engine)
            except StoreError as error:
                engine.refuse(error)
                continue
            entity.fill(slot, member)  # type: ignore[arg-type]  # of the shape's kind
            if entity.transfer_dead_letters is not None:
                transfer = engine.transfers[member.number]
                entity.transfer_dead_letters.fill(entity.transfer_dead_letters.slots[slot.index], transfer)

    @staticmethod
    def _member(shape: _Shape, path: str, index: int, engine: FragmentEngine) -> Intake:
        number, before_first = shape.number + shape.step * index, first_of(index)
        transfer = engine.member(Queue, path + TRANSFER, number + shape.step - 1, before_first)
        engine.transfers[number] = transfer
        if shape.kind == "topic":
            return engine.member(Topic, path, number, before_first)
        queue: Queue = engine.member(SessionQueue if shape.kind == "sessions" else Queue, path, number, before_first)
        queue.dead_letters = engine.member(Queue, path + _DEAD_LETTER, number + 1, before_first)
        queue.transfer_dead_letters = transfer
        return queue

    def entity(self, number: int) -> AnyPartitioned:
        """The entity of a number that exists."""
        return self._entities[number]

    def transfer_dead_letters(self, number: int) -> PartitionedQueue:
        """The transfer dead-letter queue of the entity of a number, while it is loaded or exists."""
        entity = (self._loading or {}).get(number) or self._entities[number]
        queue = entity.transfer_dead_letters
        assert queue is not None
        return queue

    def whole(self, number: int) -> AnyPartitioned | None:
        """The entity that a fragment's number belongs to; None if none that exists has it."""
        for first, entity in self._entities.items():
            shape = self._shapes[first]
            if first <= number < first + shape.step * shape.fragments:
                return entity
        return None

    # ---- the end of entities

    def wipe(self, entry: Entry) -> None:
        """Stage the end of an entity whose row is being removed: its messages are removed when that is durable."""
        entity, shape = self._entities[entry.number], self._shapes[entry.number]
        self._staging.batch.put(doomed_key(shape.number), json.dumps(shape).encode())
        self._staging.promise(lambda: self._doom(shape), None)
        self._end(entity)

    def _end(self, entity: AnyPartitioned) -> None:
        """Make an entity and its dead-letter queues unusable, and notify their waiting receivers."""
        wholes = _with_dead_letters(entity)
        for each in wholes:
            each.is_deleted = True
        call_all([each.notify for each in wholes])

    def _doom(self, shape: _Shape) -> None:
        self._entities.pop(shape.number, None)
        self._shapes.pop(shape.number, None)
        self._doomed[shape.number] = (shape, set())
        self._sweep()

    def _sweep(self) -> None:
        """Remove the rows of deleted entities in the stores that are up."""
        stores = self.stores
        if stores is None:
            return
        for shape, removed in list(self._doomed.values()):
            for index in range(shape.fragments):
                store = stores.get(index % shape.stores)
                if index in removed or store.engine is None or not store.is_up:
                    continue
                try:
                    self._remove(shape, index, store.engine)
                except StoreError as error:
                    store.engine.refuse(error)

    def _remove(self, shape: _Shape, index: int, engine: FragmentEngine) -> None:
        parts = _parts(self._member(shape, "", index, engine), engine)
        if any(part.leaving_count for part in parts):
            return  # messages in a line arrive first
        for part in parts:
            engine.discard(part)
        engine.promise(partial(self._removed, shape, index), _stays)

    def sweep(self) -> None:
        """Retry removals: messages of deleted entities may have arrived elsewhere, which the removal waits for."""
        if self._doomed:
            self._sweep()

    def _removed(self, shape: _Shape, index: int) -> None:
        """A fragment's removal is durable."""
        found = self._doomed.get(shape.number)
        if found is None:
            return
        found[1].add(index)
        if len(found[1]) == shape.fragments:
            del self._doomed[shape.number]
            self._staging.batch.delete(doomed_key(shape.number))

    def _on_store(self, store: FragmentStore) -> None:
        """A store went down, came up, or was opened."""
        if store.is_up:
            for number, entity in self._entities.items():
                self._fill(self._shapes[number], entity)
        try:
            self._settle()
        finally:  # also after an error, waiting receivers must check again
            call_all([each.notify for entity in self._entities.values() for each in _with_dead_letters(entity)])
        if store.is_up:
            self._sweep()
