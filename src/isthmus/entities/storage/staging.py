"""Group commit: changes of many calls collected, written as one batch, acknowledged together after one sync.

What it is: the batch being filled, the entities it touches, and the callbacks that wait for it.
What it is not: the decision when to write and sync; that is the engine's owner's.

Invariants:
    I1. A call's changes are staged whole or not at all, so every batch written is a consistent state.
    I2. Callbacks of a commit come after the sync that covers every batch written for it.
    I3. Reads that need the latest state call `write` first: staged changes are then in the store, unsynced.
    I4. Changes staged within `patience` that no caller waits for cause no commit of their own; all others do.
    I5. Rows that a failure has left in the store count as durable when the next commit has ended (`confirm`), which is not
        requested here: a disk that refuses is not retried immediately.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from isthmus.entities.storage.journal import Batch, Journal
from isthmus.errors import StoreError

__all__ = ["Callback", "Commit", "Failure", "Member", "Staging"]

Callback = Callable[[], None]
Failure = Callable[[Exception], None]


class Member(Protocol):
    """An entity with state of its own in the store."""

    def stage_state(self, batch: Batch) -> None:
        """Put cursors and counts into the batch before it is written."""
        ...

    def seal(self) -> Any:
        """The state that becomes visible when the commit ends."""
        ...

    def publish(self, sealed: Any) -> None:
        """Make it visible."""
        ...


class Commit:
    """One written, not yet durable group of changes."""

    __slots__ = ("callbacks", "failures", "sealed")

    def __init__(self, sealed: list[tuple[Member, Any]], callbacks: list[Callback], failures: list[Failure]) -> None:
        self.sealed = sealed
        self.callbacks = callbacks
        self.failures = failures

    def __len__(self) -> int:
        """How many operations are acknowledged when it ends."""
        return len(self.callbacks)


class Staging:
    """The changes that wait for the next commit.

    Attributes:
        journal: the store.
        on_staged: called when something is staged after nothing was, and again when `is_awaited` becomes true.
        is_awaited: whether a commit is wanted now: a caller waits for it, or it makes something visible.
        on_refused: called when the store refused a write, before the error reaches the caller.
        is_stale: whether memory may differ from the store: nothing of it may be written.
        drops: how often everything staged was dropped.
        pending_ids: message ids seen by detection and not yet readable from the store.
        pending_runs: rows of duplicate keys that are staged and not yet readable from the store.
    """

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.on_staged: Callback | None = None
        self.on_refused: Failure | None = None
        self.pending_ids: dict[bytes, int] = {}
        self.pending_runs: dict[bytes, bytes] = {}
        self._batch: Batch | None = None
        self._touched: dict[Member, None] = {}
        self._written: dict[Member, None] = {}
        self._callbacks: list[Callback] = []
        self._failures: list[Failure] = []
        self._unconfirmed: list[Callback] = []
        self._checks: list[Callback] = []
        self.is_awaited = False
        self._idle = True
        self._is_atomic = False
        self._patient = False
        self.is_stale = False
        self.drops = 0
        # How often something was staged.
        self._changes = 0

    @property
    def has_staged(self) -> bool:
        """Whether there is anything to commit."""
        return not self._idle

    @property
    def batch(self) -> Batch:
        """The batch to put changes into."""
        self._changes += 1
        if self._batch is None:
            self._batch = self.journal.batch()
        if not self.is_awaited:
            self._wake()
        return self._batch

    def touch(self, member: Member) -> None:
        """The member's state changed: it is written with the batch, and published when the commit ends."""
        self._touched[member] = None
        self._changes += 1
        if not self.is_awaited:
            self._wake()

    def promise(self, on_durable: Callback | None, on_failed: Failure | None) -> None:
        """Call back when the staged changes are durable, or have failed."""
        if on_durable is not None:
            self._callbacks.append(on_durable)
        if on_failed is not None:
            self._failures.append(on_failed)
        if not self.is_awaited:
            self._wake()

    def confirm(self, on_durable: Callback, on_failed: Failure | None = None) -> None:
        """Call back when the next commit has ended, whoever causes it; for rows that were found in the store after a failure. A
        store without room is read as it is, with rows that a power cut may remove. A further failure drops the callback.
        """
        self._unconfirmed.append(on_durable)
        if on_failed is not None:
            self._failures.append(on_failed)

    def when_back(self, check: Callback) -> None:
        """Call once the store was reopened after a failure and everything is reloaded from it."""
        self._checks.append(check)

    def take_checks(self) -> list[Callback]:
        """The callbacks of `when_back`; they are called once."""
        checks, self._checks = self._checks, []
        return checks

    def begin_load(self) -> None:
        """The rows in the store are about to be read again."""
        self._unconfirmed = []

    @property
    def has_unconfirmed(self) -> bool:
        """Whether `confirm` callbacks wait for the next commit, without having requested one."""
        return bool(self._unconfirmed)

    def has_changes_of(self, member: Member) -> bool:
        """Whether the member has changes that are in no commit yet."""
        return member in self._touched or member in self._written

    @contextmanager
    def patience(self) -> Iterator[None]:
        """Changes staged within may wait for a commit that has another cause."""
        self._patient = True
        try:
            yield
        finally:
            self._patient = False

    def _wake(self) -> None:
        if self._patient and not self._idle:
            return
        self._idle = False
        self.is_awaited = not self._patient
        if self.on_staged is not None:
            self.on_staged()

    def write(self) -> None:
        """Write everything staged to the store, unsynced.

        Raises:
            StoreError: the store refused.
        """
        if self._is_atomic or (self._batch is None and not self._touched):
            return
        batch = self.journal.batch() if self._batch is None else self._batch
        try:
            if self.is_stale:
                raise StoreError("The store has failed and is not reopened yet.")
            for member in self._touched:
                member.stage_state(batch)
            self._batch = None
            self.journal.write(batch)
        except Exception as error:
            # Half of the staged changes must not be written later without the other half (I1).
            if self.on_refused is not None:
                self.on_refused(error)
            raise
        self._written.update(self._touched)
        self._touched.clear()
        self.pending_ids.clear()
        self.pending_runs.clear()

    @contextmanager
    def whole(self, *, begun: bool = False) -> Iterator[None]:
        """Changes staged within are staged whole (I1), or everything staged fails: a store that refuses a write fails it
        itself, any other fault, also a refused read, is handled here. If nothing was staged, nothing fails.

        Args:
            begun: whether something was changed in memory before.
        """
        drops, changes = self.drops, self._changes
        try:
            yield
        except Exception as fault:
            if self.drops == drops and (begun or self._changes != changes) and self.on_refused is not None:
                self.on_refused(fault)
            raise

    @contextmanager
    def atomic(self) -> Iterator[None]:
        """Keep all changes staged within in one batch: reads in between see the store as it was before.

        Raises:
            Exception: raised within, or by the write before; everything staged has failed then.
        """
        self.write()
        self._is_atomic = True
        try:
            yield
        except Exception as error:
            self._is_atomic = False
            if self.on_refused is not None:
                self.on_refused(error)
            raise
        finally:
            self._is_atomic = False

    def begin(self) -> Commit | None:
        """Write, and return the changes that wait for the sync."""
        if self._idle:
            return None
        self.write()
        try:
            sealed = [(member, member.seal()) for member in self._written]
        except Exception as error:
            if self.on_refused is not None:
                self.on_refused(error)
            raise
        commit = Commit(sealed, self._unconfirmed + self._callbacks, self._failures)
        self._unconfirmed = []
        self._written = {}
        self._callbacks = []
        self._failures = []
        self._idle = True
        self.is_awaited = False
        return commit

    def drop(self) -> list[Failure]:
        """Drop everything staged or written and not begun; returns its failure callbacks."""
        self.drops += 1
        failures = self._failures
        self._batch = None
        self._touched.clear()
        self._written = {}
        self.pending_ids.clear()
        self.pending_runs.clear()
        self._callbacks = []
        self._failures = []
        self._unconfirmed = []
        self._idle = True
        self.is_awaited = False
        return failures
