"""The engine of one namespace: the object that the broker works with.

What it is: the lookup of senders and receivers, group commit (`begin_commit`, `end_commit`), the passing of time
(`tick`) and the counts; management is inherited from `administration`.
What it is not: what a queue or topic does (`queue`, `topic`), nor threads and sockets (the broker's).
Over 400 lines: commits, failures and checks concern the same members and stores, and each depends on the others; due work
is in `clockwork`.
Spec: docs/explanation/protocol.md, Links, Administration, Settlement, Message.

Invariants:
    I1. A failed commit leaves nothing half done: every entity goes back to the state of the store.
    I2. Every entity is checked once in ten seconds, whether or not it has due work.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable

from isthmus.clock import Clock, monotonic_ms
from isthmus.entities.administration import Administration
from isthmus.entities.catalog.catalog import Entry
from isthmus.entities.catalog.description import (
    INFINITE_MS,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from isthmus.entities.catalog.limit import Limits
from isthmus.entities.clockwork import Clockwork
from isthmus.entities.fragment.crossing import route_finder
from isthmus.entities.fragment.port import FragmentStores
from isthmus.entities.fragment.transfer import PartitionedTransfer
from isthmus.entities.idle import IdleTime, last_use_ms
from isthmus.entities.loaded import described
from isthmus.entities.member.listener import call_all
from isthmus.entities.port import Entity, MessageSource, MessageTarget
from isthmus.entities.queue.intake import Intake
from isthmus.entities.queue.onward import Target
from isthmus.entities.runtime import Runtime, runtime_of
from isthmus.entities.storage.blob import Blobs
from isthmus.entities.storage.blob_file import BlobFiles
from isthmus.entities.storage.journal import Journal
from isthmus.entities.storage.key import IDENTITY
from isthmus.entities.storage.staging import Callback, Commit, Failure
from isthmus.entities.transaction.transaction import Transaction
from isthmus.entities.transaction.transfer import Transfer
from isthmus.entities.wake import Wakes
from isthmus.errors import NotAllowedError, StoreError

__all__ = ["Commit", "Engine"]

_log = logging.getLogger(__name__)

# 64 bits: every copy of every message contains it.
_IDENTITY_CHARACTERS = 16
_HOUSEKEEPING_MS = 10_000


class Engine(Administration):
    """All entities of one namespace. Single-threaded; no I/O but through the store.

    The owner's loop: when `on_staged` was called (or `has_staged`), ``commit = begin_commit()``, then ``store.sync()``
    in a thread, then ``end_commit(commit)`` on the loop, or ``fail_commit(commit, error)`` if the sync raised. Commits
    end in the order they began; more may be staged and begun while one is synced.

    Args:
        store: contains everything; the owner closes it.
        clock: wall and monotonic time.
        limits: of the namespace.
        random_bytes: source of lock tokens and message ids.
        blob_files: the bodies of large messages; None takes all messages as bytes.
        stores: for the fragments of partitioned entities; None refuses those.

    Raises:
        StoreError: the store was written by another release in a form that this one does not know.
    """

    def __init__(
        self,
        store: Journal,
        clock: Clock,
        *,
        limits: Limits = Limits(),  # noqa: B008 - frozen
        random_bytes: Callable[[int], bytes] = os.urandom,
        blob_files: BlobFiles | None = None,
        stores: FragmentStores | None = None,
    ) -> None:
        self._commits: list[Commit] = []
        # True from a failure until the store was reopened and its contents were loaded.
        self._is_stale = False
        self._wakes = Wakes()
        self._next_housekeeping_ms = 0
        # Receivers from before a restart have not reconnected yet.
        self._idle_time = IdleTime(clock)
        self._idle: set[Intake] = set()
        super().__init__(store, clock, limits, random_bytes, self._wakes.add, blob_files, stores)
        self._staging.on_refused = self._fail
        self._clockwork = Clockwork(
            self._context,
            self._wakes,
            lambda number: self._numbers.get(number),  # noqa: PLW0108 - a reload makes a new dictionary
            self._fail,
        )

    @property
    def blobs(self) -> Blobs:
        """The bodies of large messages."""
        return self._context.blobs

    # ---- entities by path

    @property
    def stores(self) -> FragmentStores | None:
        """The stores of fragments."""
        return self._partitions.stores

    def sender(self, path: str, *, restores: bool = False) -> Entity:
        """The entity that takes messages at a path, as an AMQP address has it.

        Args:
            path: of the entity.
            restores: whether messages are put back into a dead-letter queue.

        Raises:
            EntityNotFoundError: there is no entity.
            NotAllowedError: it takes no sends (a subscription, a dead-letter queue).
        """
        entry, member = self._find(path)
        if member.takes_senders:
            if entry.kind != "subscription":
                return member
        elif restores:
            return member
        raise NotAllowedError(f"'{member.path}' takes no sends; send to its queue or topic.")

    def receiver(self, path: str) -> MessageSource:
        """The entity that gives messages at a path.

        Raises:
            EntityNotFoundError: there is no entity.
            NotAllowedError: it gives none (a topic).
        """
        _, member = self._find(path)
        if member.source is not None:
            return member.source
        raise NotAllowedError(f"'{member.path}' is a topic; receive from one of its subscriptions.")

    def via(self, path: str, destination: str) -> MessageTarget:
        """The target of messages that are sent via the entity at a path to another queue or topic.

        Raises:
            EntityNotFoundError: one of the two does not exist.
            NotAllowedError: one of the two takes no sends, or the namespace's tier has no transactions.
        """
        self.check_transactions()
        entry, between = self._find(path)
        if not between.takes_senders:
            raise NotAllowedError(f"'{between.path}' takes no sends; send to its queue or topic.")
        to = self.sender(destination).path
        if entry.fragments:
            return PartitionedTransfer(self._partitions.entity(entry.number), to, self._target, self._route_finder_via)
        stored = self._numbers[entry.number]
        return Transfer(stored, to, self._route_finder_via(stored), self._context)

    def _route_finder_via(self, between: Intake) -> Callable[[str], Target | None]:
        return route_finder(between, self._target, is_via=True)

    def transaction(self) -> Transaction:
        """A transaction, declared now."""
        return Transaction(self._context)

    def canonical_name(self, path: str) -> str:
        """The path in the spelling in which the entity was created.

        Raises:
            EntityNotFoundError: there is no entity.
        """
        return self._find(path)[1].path

    def runtime(self, path: str) -> Runtime:
        """Counts, size and times of the queue, topic, subscription or dead-letter queue at a path.

        Raises:
            EntityNotFoundError: there is no entity.
        """
        entry, member = self._find(path)
        topic = self._topics.get(entry.names[0].lower()) if member.source is None else None
        return runtime_of(entry, member, topic)

    def check_transactions(self) -> None:
        """Check that the namespace's tier has transactions, and sends via another entity.

        Raises:
            NotAllowedError: it has none.
        """
        tier = self._limits.tier
        if tier is not None and not tier.has_transactions:
            raise NotAllowedError(f"The namespace is using the '{tier.title}' tier, which has no transactions.")

    def members(self) -> list[tuple[str, Entity]]:
        """The kind and the object of every queue, topic and subscription; dead-letter queues are part of theirs."""
        found: list[tuple[str, Entity]] = [("queue", loaded.queue) for loaded in self._queues.values()]
        for topic in self._topics.values():
            found.append(("topic", topic.topic))
            found += [("subscription", loaded.queue) for loaded in topic.subscriptions.values()]
        return found

    @property
    def identity(self) -> str:
        """Identifies this namespace under all of its addresses: the first half of its store's id."""
        row = self._store.get(IDENTITY)
        return "" if row is None else str(json.loads(row)["store_id"])[:_IDENTITY_CHARACTERS]

    @property
    def needs_probe(self) -> bool:
        """Whether a failure is not over: the store is not reopened, or rows found in it wait for the next commit."""
        return self._is_stale or self._staging.has_unconfirmed

    def probe(self) -> None:
        """Stage a row that exists already: its commit shows whether the disk works again.

        Raises:
            StoreError: the store could not be reopened after a failure, and still cannot.
            ExceptionGroup: as `fail_commit`.
        """
        self._recover_if_due()
        self._stage_identity()

    def _stage_identity(self) -> None:
        row = self._store.get(IDENTITY)
        if row is not None:
            self._staging.batch.put(IDENTITY, row)

    # ---- group commit

    @property
    def on_staged(self) -> Callback | None:
        """Called each time something is staged after nothing was, or `is_awaited` becomes true; set by the owner."""
        return self._staging.on_staged

    @on_staged.setter
    def on_staged(self, callback: Callback | None) -> None:
        self._staging.on_staged = callback

    @property
    def has_staged(self) -> bool:
        """Whether `begin_commit` has work."""
        return self._staging.has_staged

    @property
    def is_awaited(self) -> bool:
        """Whether a caller waits for the commit, or it makes something visible; other changes may wait for one of these."""
        return self._staging.is_awaited

    def promise(self, on_durable: Callback, on_failed: Failure) -> None:
        """Call one of the two once all that is staged or in progress now is durable or has failed; immediately if nothing is."""
        if self._staging.has_staged:
            self._staging.promise(on_durable, on_failed)
        elif self._commits:
            self._commits[-1].callbacks.append(on_durable)
            self._commits[-1].failures.append(on_failed)
        else:
            on_durable()

    def begin_commit(self) -> Commit | None:
        """Write all that is staged, not yet durable; None if nothing is.

        Raises:
            StoreError: the store refused; everything staged or uncommitted has failed as in `fail_commit`.
        """
        if self._is_stale and self._staging.has_staged:
            # Memory may differ from the store: nothing of it may be written.
            error = StoreError("The store has failed and is not reopened yet.")
            self._fail(error)
            raise error
        commit = self._staging.begin()
        self._context.fan_out.begin()
        if commit is not None:
            self._commits.append(commit)
        return commit

    def end_commit(self, commit: Commit) -> None:
        """After the sync: make the commit's messages visible, call back, notify listeners.

        A commit that has failed already (with an earlier one) is skipped.

        Raises:
            ExceptionGroup: the errors of callbacks and listeners, once all of them have been called.
        """
        if commit not in self._commits:
            return
        self._commits.remove(commit)
        failures = self._failures
        faults: list[Exception] = []
        for callback in commit.callbacks:
            try:
                callback()
            except Exception as fault:  # noqa: BLE001 - the fault of one must not keep the others from being called
                faults.append(fault)
        for member, sealed in commit.sealed:
            if self._failures != failures:
                break  # a read in a callback failed: everything was loaded again, this commit included
            try:
                member.publish(sealed)
            except Exception as fault:  # noqa: BLE001 - as above
                faults.append(fault)
        try:
            self.fan_out()
        except Exception as fault:  # noqa: BLE001 - as above
            faults.append(fault)
        if faults:
            raise ExceptionGroup("after a commit", faults)

    def fan_out(self) -> bool:
        """Let one waiting topic make the copies of one slice; returns whether to call again before the next commit ends.

        The end of a commit calls it, too.

        Raises:
            StoreError: the store refused.
        """
        if not self.is_fanning_out:
            return False
        try:
            return self._context.fan_out.go_on()
        except Exception as error:
            # Copies that were staged before it must not be written without the record that they were made.
            self._fail(error)
            raise

    @property
    def is_fanning_out(self) -> bool:
        """Whether topics have waiting messages that `fan_out` may copy now."""
        return self._may_fan_out and self._context.fan_out.is_waiting

    @property
    def _may_fan_out(self) -> bool:
        """Whether topics have their subscriptions, and are in the state of the store."""
        return not self._is_stale

    def stop_fan_out(self) -> None:
        """Leave waiting messages of topics for the next start; their senders get the outcome, as the messages are durable."""
        self._context.fan_out.stop()
        for member in self._numbers.values():
            member.notify_senders()
        for store in self.stores or ():
            if store.engine is not None:
                store.engine.stop_fan_out()

    def fail_commit(self, commit: Commit, error: Exception) -> None:
        """After a failed sync: this commit, later ones and all that is staged fail.

        Their `on_failed` callbacks get the error, the store is reopened, and every entity is reloaded from the disk, as
        after a restart: locks are lost, acknowledged messages are kept. Refused messages may exist
        too, if the disk took it before it failed: the outcome is unknown, and a sender that repeats may duplicate.

        Raises:
            StoreError: the store cannot be reopened now; `probe` tries it again. Commits fail until then.
            ExceptionGroup: the errors of callbacks, once all of them have been called.
        """
        if commit in self._commits:
            self._fail(error)

    # How often everything staged has failed.
    _failures = 0

    def _fail(self, error: Exception) -> None:
        self._failures += 1
        failures = [callback for commit in self._commits for callback in commit.failures]
        failures += self._staging.drop()
        self._context.fan_out.begin()
        self._commits.clear()
        self._wakes.clear()
        faults: list[Exception] = []
        self._is_stale = self._staging.is_stale = True
        try:
            self._recover()
        finally:
            for callback in failures:
                try:
                    callback(error)
                except Exception as fault:  # noqa: BLE001 - the fault of one must not keep the others from being called
                    faults.append(fault)
        if faults:
            raise ExceptionGroup("after a failed commit", faults)

    def _find(self, path: str) -> tuple[Entry, Entity]:
        self._check_loaded()
        return super()._find(path)

    def _recover_if_due(self) -> None:
        """Retry going back to the store's state, if that is due."""
        if self._is_stale and self._staging.has_staged:
            # It was staged on the state of memory before the reload, which may differ from the store.
            self._fail(StoreError("The store has failed and is not reopened yet."))
        self._recover()

    def _recover(self) -> None:
        """Reopen the store and go back to its state, if that is due since a failure."""
        if self._is_stale:
            self._release_store()
            self._store.reopen()
            self._staging.is_stale = False
            try:
                self._reload()
            except BaseException:
                self._staging.is_stale = True
                raise
            self._is_stale = False
            self.restart_idle_counts()
            call_all(self._staging.take_checks())

    def close(self) -> None:
        """Commit and sync the staged changes; the owner closes the store.

        Raises:
            StoreError: the store refused.
        """
        if self.handover is not None:
            self.handover.pause()
        self.stop_fan_out()
        self.begin_commit()
        if self._commits:
            self._store.sync()
        for commit in list(self._commits):
            self.end_commit(commit)
        self._release_store()
        if self.stores is not None:
            self.stores.close()

    def _release_store(self) -> None:
        """Close every scan: a store with an open one cannot be closed."""
        for member in self._numbers.values():
            member.release_store()

    # ---- time

    def tick(self, now_ms: int | None = None) -> int | None:
        """Do the due work: lock expiry, TTL, due schedules, AutoDeleteOnIdle; bounded work per call.

        Returns:
            Wall ms when to call again (now, if more is due); None if nothing is pending. `on_staged` reports
            changes to commit.

        Raises:
            StoreError: as `begin_commit`.
        """
        now = self._clock.wall_ms() if now_ms is None else now_ms
        steady = monotonic_ms(self._clock)
        if self._is_stale:
            # Entities that are not loaded yet are not deleted ones: their due work has to stay.
            if steady >= self._next_housekeeping_ms:
                self._next_housekeeping_ms = steady + _HOUSEKEEPING_MS
                self._recover_if_due()
            return now + self._next_housekeeping_ms - steady
        self._clockwork.tick(now, steady)
        if steady >= self._next_housekeeping_ms:
            self._next_housekeeping_ms = steady + _HOUSEKEEPING_MS
            self._housekeep(now)
        if not self._staging.has_staged and not self._commits:
            self.fan_out()  # after a start, or a failed commit
        self.hubs.tick(now)
        self._context.blobs.tick(now)
        waits = [self._clockwork.next_ms(now, steady), self.hubs.due_ms]
        if self.stores is not None:
            waits.append(self.stores.tick(now))
        if self._numbers:
            waits.append(now + self._next_housekeeping_ms - steady)
        return min((at_ms for at_ms in waits if at_ms is not None), default=None)

    def _housekeep(self, now: int) -> None:
        """Every ten seconds: idle entities free their memory and scans, and entities that are idle for too long are deleted."""
        idle = {member for member in self._numbers.values() if now - member.accessed_at_ms > _HOUSEKEEPING_MS}
        for member in idle - self._idle:
            member.housekeep()
        self._idle = idle
        if self._staging.has_unconfirmed:
            self._stage_identity()
        self._pump()
        self._delete_idle(now)

    def _apply_partitioned(self) -> None:
        super()._apply_partitioned()
        self.restart_idle_counts()

    def restart_idle_counts(self) -> None:
        """Restart all idle times: receivers could not reach the entities until now."""
        self._idle_time.restart()

    def _delete_idle(self, now: int) -> None:
        since = self._idle_time.since_ms(now)
        for name, queue in list(self._queues.items()):
            limit_ms = described(queue.entry, QueueDescription).auto_delete_on_idle_ms
            if limit_ms < min(INFINITE_MS, since) and now - last_use_ms(queue.entry, queue.queue, now) > limit_ms:
                self.delete_queue(name)
        for name, topic in list(self._topics.items()):
            for key, subscription in list(topic.subscriptions.items()):
                limit_ms = described(subscription.entry, SubscriptionDescription).auto_delete_on_idle_ms
                last_use = last_use_ms(subscription.entry, subscription.queue, now)
                if limit_ms < min(INFINITE_MS, since) and now - last_use > limit_ms:
                    self.delete_subscription(name, key)
            limit_ms = described(topic.entry, TopicDescription).auto_delete_on_idle_ms
            if limit_ms < min(INFINITE_MS, since):
                uses = [last_use_ms(each.entry, each.queue, now) for each in topic.subscriptions.values()]
                if now - max(last_use_ms(topic.entry, topic.topic, now), *uses, 0) > limit_ms:
                    self.delete_topic(name)
