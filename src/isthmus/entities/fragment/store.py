"""The stores of fragments: each with a disk, a group commit and due work of its own.

What it is: an engine without a catalog for each store, opened when the first fragment needs it; the state of the store,
and its retries. What it is not: the list of fragments, which is in the namespace's catalog (`partitions`).
Spec: docs/explanation/protocol.md, Entities; docs/adr/0016-partitioned-entities.md.

Invariants:
    I1. The failure of a store affects only its own fragments: no error of it is raised into the namespace's tick.
    I2. A store that is down is only retried; it is up again after a commit was synced.
    I3. A namespace without partitioned entities opens none.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TypeVar

from isthmus.clock import Clock
from isthmus.entities.catalog.limit import Limits
from isthmus.entities.engine import Commit, Engine
from isthmus.entities.fragment import port
from isthmus.entities.member.state import fresh_state
from isthmus.entities.queue.intake import Intake
from isthmus.entities.queue.queue import Queue
from isthmus.entities.queue.window import Budget
from isthmus.entities.storage.journal import Journal
from isthmus.entities.storage.key import COUNTER, state_key
from isthmus.errors import StoreError

__all__ = ["FragmentEngine", "FragmentStore", "FragmentStores"]

_log = logging.getLogger(__name__)

_M = TypeVar("_M", bound=Intake)
# Fragments have numbers from the namespace's counter; numbers that a store assigns itself (sessions) begin above.
_FIRST_OWN_NUMBER = 1 << 31


def _nothing() -> None:
    """Does nothing."""


class FragmentEngine(Engine):
    """The fragments in one store. Its catalog is empty: the namespace creates and drops them.

    Args:
        index: of its outbox among those of all stores; the other arguments as for `Engine`.

    Attributes:
        transfers: the transfer dead-letter queues, by the number of the fragment that each belongs to.
        is_up: whether fragments may be used; False from a failure until a commit was synced again.
        reason: why it is down.
        on_change: called when it went down or came up.
    """

    def __init__(
        self, journal: Journal, clock: Clock, limits: Limits, random_bytes: Callable[[int], bytes], index: int
    ) -> None:
        self._outbox_index = index
        self.transfers: dict[int, Queue] = {}
        self.is_up = True
        self.reason = ""
        self.on_change = _nothing
        self._first_numbers: dict[int, int] = {}
        super().__init__(journal, clock, limits=limits, random_bytes=random_bytes)

    # ---- fragments

    def member(self, kind: type[_M], path: str, number: int, before_first: int) -> _M:
        """The fragment of a number, as the store has it; the existing object, if there is one.

        Args:
            kind: its class.
            path: of the whole entity.
            number: from the namespace's counter.
            before_first: the number before its first sequence number.
        """
        known = self._numbers.get(number)
        if isinstance(known, kind):
            return known
        self._first_numbers[number] = before_first
        member = kind(path, number, self._context, self._state_of(number))
        member.is_fragment = True
        self._numbers[number] = member
        return member

    def forget(self, member: Intake) -> None:
        """Drop a fragment under which nothing was stored."""
        member.is_deleted = True
        self._let_go(member.number)

    def discard(self, member: Intake) -> None:
        """Stage the removal of all rows of a fragment."""
        member.wipe()
        self._let_go(member.number)

    def _let_go(self, number: int) -> None:
        self._numbers.pop(number, None)
        self._first_numbers.pop(number, None)
        self.transfers.pop(number, None)

    def share(self, budget: Budget) -> None:
        """Count messages in memory against the namespace's limit instead of one of its own."""
        self._context.budget = budget

    def _state_of(self, number: int) -> bytes:
        return self._store.get(state_key(number)) or fresh_state(self._first_numbers[number])

    def _transfer_of(self, member: Intake) -> Queue:
        return self.transfers[member.number]

    def _load(self) -> None:
        self.outbox.load()
        self._next_number = int(self._store.get(COUNTER) or _FIRST_OWN_NUMBER)
        for number, member in self._kept.items():
            member.reload(self._state_of(number))
            self._numbers[number] = member
        self._kept = {}

    # ---- down and up

    def _fail(self, error: Exception) -> None:
        self.is_up = False
        self.reason = str(error)
        try:
            super()._fail(error)
        except StoreError as worse:
            self.reason = str(worse)
            for member in self._numbers.values():
                member.lose_session_locks()
        finally:
            self.on_change()

    def refuse(self, error: StoreError) -> None:
        """Go down: a read for a fragment failed."""
        try:
            self._fail(error)
        except ExceptionGroup:
            _log.exception("a fault while a store of fragments went down: store=%d", self.outbox.index - 1)

    def end_commit(self, commit: Commit) -> None:
        is_current, failures = commit in self._commits, self._failures  # or it failed with an earlier one
        try:
            super().end_commit(commit)
        finally:  # an error of a callback or listener is not one of the disk
            if is_current and not self.is_up and self._failures == failures:
                self.is_up = True
                self.reason = ""
                self.on_change()

    @property
    def _may_fan_out(self) -> bool:
        return self.is_up

    def retry(self) -> None:
        """If it is down, check whether the disk works again; it is up when the commit that this stages is synced."""
        if self.is_up:
            return
        try:
            self.probe()
        except StoreError as error:
            self.reason = str(error)

    def tick(self, now_ms: int | None = None) -> int | None:
        """As for any engine; a store that refuses goes down, and raises nothing."""
        if not self.is_up:
            return None
        try:
            return super().tick(now_ms)
        except StoreError:
            return None


class FragmentStore:
    """One store of fragments, opened or not.

    Attributes:
        index: among the namespace's stores.
        engine: None until it could be opened.
        journal: likewise.
        failures: how often it went down, or could not be opened.
    """

    def __init__(self, index: int) -> None:
        self.index = index
        self.engine: FragmentEngine | None = None
        self.journal: Journal | None = None
        self.failures = 0
        self._reason = ""

    @property
    def is_up(self) -> bool:
        """Whether its fragments may be used."""
        return self.engine is not None and self.engine.is_up

    @property
    def reason(self) -> str:
        """Why it is down."""
        return self._reason if self.engine is None else self.engine.reason

    def refuse(self, error: StoreError) -> None:
        """Note that it could not be opened."""
        self.failures += 1
        self._reason = str(error)

    def open(self, journal: Journal, engine: FragmentEngine) -> None:
        """Note that it is open."""
        self.journal, self.engine, self._reason = journal, engine, ""


class FragmentStores:
    """The stores of fragments of one namespace.

    Args:
        open_journal: opens the store of an index, from 0; raises StoreError if it cannot.
        clock: wall and monotonic time.
        limits: of the namespace.
        random_bytes: source of lock tokens.

    Attributes:
        budget: the limit of messages in memory for the namespace; set before the first store is opened.
        on_engine: called with each store when it was opened, before `on_opened`.
        on_opened: called with each store when it was opened: its owner commits its staged changes, as for any engine.
        on_change: called with each store that went down or came up, or could not be opened.
        on_back: called before that with the same store, so that the fragments are ready for the callers of `on_change`.
    """

    def __init__(
        self,
        open_journal: Callable[[int], Journal],
        clock: Clock,
        limits: Limits,
        random_bytes: Callable[[int], bytes],
    ) -> None:
        self._open_journal = open_journal
        self._clock = clock
        self._limits = limits
        self._random_bytes = random_bytes
        self._stores: dict[int, FragmentStore] = {}
        self.budget: Budget | None = None
        self.on_engine: Callable[[port.FragmentStore], None] = lambda store: None
        self.on_opened: Callable[[FragmentStore], None] = lambda store: None
        self.on_change: Callable[[FragmentStore], None] = lambda store: None
        self.on_back: Callable[[port.FragmentStore], None] = lambda store: None

    def __iter__(self) -> Iterator[FragmentStore]:
        return iter(list(self._stores.values()))

    def get(self, index: int) -> FragmentStore:
        """A store, opened if possible."""
        store = self._stores.get(index)
        if store is None:
            store = self._stores[index] = FragmentStore(index)
            self._open(store)
            if not store.is_up:
                self.on_change(store)
        return store

    def _open(self, store: FragmentStore) -> None:
        journal: Journal | None = None
        try:
            journal = self._open_journal(store.index)
            engine = FragmentEngine(journal, self._clock, self._limits, self._random_bytes, store.index + 1)
        except StoreError as error:
            store.refuse(error)
            if journal is not None:
                _close(journal)
            return
        if self.budget is not None:
            engine.share(self.budget)
        engine.on_change = lambda: self._changed(store)
        store.open(journal, engine)
        self.on_engine(store)
        self.on_opened(store)

    def _changed(self, store: FragmentStore) -> None:
        if not store.is_up:
            store.failures += 1
        try:
            self.on_back(store)
        finally:
            self.on_change(store)

    def journals(self) -> dict[str, Journal]:
        """The open stores by index, for a copy of all.

        Raises:
            StoreError: one is down, and a copy would lack its contents.
        """
        journals: dict[str, Journal] = {}
        for store in self._stores.values():
            if store.journal is None or not store.is_up:
                raise StoreError(f"The store {store.index} of partitioned entities is down, and cannot be copied now.")
            journals[str(store.index)] = store.journal
        return journals

    def retry(self) -> None:
        """Retry the stores that are down."""
        for store in list(self._stores.values()):
            if store.engine is not None:
                store.engine.retry()
            else:
                self._open(store)
                if store.is_up:
                    self.on_back(store)
                    self.on_change(store)

    def tick(self, now_ms: int) -> int | None:
        """Do the due work in all of them; returns wall ms when to call again, None if nothing is pending."""
        dues = [store.engine.tick(now_ms) for store in self._stores.values() if store.engine is not None]
        return min((due for due in dues if due is not None), default=None)

    def close(self) -> None:
        """Commit the staged changes and close them; a store that is down has nothing to commit."""
        for store in self._stores.values():
            if store.engine is None or store.journal is None:
                continue
            if store.is_up:
                with suppress(StoreError):  # reported by the callbacks, like any failed commit
                    store.engine.close()
            _close(store.journal)
        self._stores.clear()


def _close(journal: Journal) -> None:
    with suppress(StoreError):
        journal.close()
