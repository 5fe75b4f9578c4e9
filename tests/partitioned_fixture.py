"""A namespace in memory whose partitioned entities are in several journals that fail one by one."""

from __future__ import annotations

import os

from isthmus.amqp import section
from isthmus.entities import Engine, FragmentStores, Journal, Limits
from isthmus.errors import StoreError
from isthmus.store import MemoryJournal
from isthmus.testing.clock import ManualClock

STORES = 3
FRAGMENTS = 7


class Stores:
    """An engine over its catalog's journal and over those of fragments.

    Attributes:
        broken: the journals that cannot be opened.
    """

    def __init__(self) -> None:
        self.main = MemoryJournal()
        self.journals: dict[int, MemoryJournal] = {}
        self.broken: set[int] = set()
        self.clock = ManualClock()
        self.limits = Limits(partitions_per_entity=FRAGMENTS, partition_stores=STORES)
        self.reported: list[tuple[int, bool]] = []
        self.start()

    def start(self) -> None:
        self.reported.clear()
        self.stores = FragmentStores(self._open, self.clock, self.limits, os.urandom)
        self.stores.on_change = lambda store: self.reported.append((store.index, store.is_up))
        self.engine = Engine(self.main, self.clock, limits=self.limits, stores=self.stores)

    def _open(self, index: int) -> Journal:
        if index in self.broken:
            raise StoreError(f"store {index} cannot be opened")
        return self.journals.setdefault(index, MemoryJournal())

    def commit_catalog(self) -> None:
        _commit(self.engine, self.main)

    def commit_store(self, index: int) -> None:
        store = self.stores.get(index)
        if store.engine is not None:
            _commit(store.engine, self.journals[index])

    def commit(self) -> None:
        """Until nothing is staged anywhere; a store that refuses is left."""
        for _ in range(5):
            self.commit_catalog()
            for store in self.stores:
                self.commit_store(store.index)

    def crash(self, keep: int = 0) -> None:
        """Lose what is not synced, but for the first batches of each journal, and start again."""
        for journal in (self.main, *self.journals.values()):
            journal.crash(keep)
        self.start()

    def advance(self, ms: int) -> None:
        """Let time pass and do what it asks for."""
        self.clock.advance(ms)
        for _ in range(100):
            due = self.engine.tick()
            self.commit()
            if due is None or due > self.clock.wall_ms():
                return
        raise AssertionError("tick never comes to rest")


def _commit(engine: Engine, journal: MemoryJournal) -> None:
    try:
        commit = engine.begin_commit()
    except StoreError:
        return
    if commit is None:
        return
    try:
        journal.sync()
    except StoreError as error:
        engine.fail_commit(commit, error)
        return
    engine.end_commit(commit)


def message(
    body: str, *, key: str | None = None, session: str | None = None, message_id: str | None = None, **fields: object
) -> bytes:
    """A message with these keys."""
    return section.encode_message(
        body.encode(),
        annotations={"x-opt-partition-key": key} if key is not None else None,
        properties={
            "message_id": body if message_id is None else message_id,
            **({"group_id": session} if session is not None else {}),
            **fields,
        },
    )


def body_of(payload: bytes) -> str:
    """The body of a delivered message."""
    found = section.locate(payload)
    return payload[found.body[0] + 5 : found.body[1]].decode()


def sequence_of(payload: bytes) -> int:
    """The sequence number of a delivered message."""
    found = section.locate(payload)
    return int(section.decode_map(payload, found.message_annotations)["x-opt-sequence-number"])
