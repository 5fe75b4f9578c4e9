"""The engine of one namespace: entities by path, group commit over all of them, and the passing of time.

What it is: the management operations, the lookup of senders and receivers, `begin_commit` and `end_commit`, `tick`.
What it is not: what a queue or topic does (`queue`, `topic`), nor threads and sockets (the broker's).
Spec: SERVICE-BUS.md W5, W13, 5.8, 5.9. Longer than a usual module: it is the facade over the whole package.

Invariants:
    I1. After a restart every entity, message, count and cursor is as the last synced commit left it.
    I2. A failed commit leaves nothing half done: every entity goes back to what the store holds.
    I3. A tick's cost depends on what is due, not on how many entities or messages there are.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from isthmus.clock import Clock
from isthmus.entities.calendar import BUCKET_MS
from isthmus.entities.catalog import Entry, catalog_key, check_name, parse_address, unpack_entry
from isthmus.entities.description import (
    DEFAULT_RULE_NAME,
    INFINITE_MS,
    CorrelationFilter,
    Description,
    EntityStatus,
    QueueDescription,
    RuleDescription,
    SqlFilter,
    SubscriptionDescription,
    TopicDescription,
)
from isthmus.entities.intake import Context, Intake
from isthmus.entities.journal import Journal
from isthmus.entities.key import CATALOG, COUNTER, FORMAT, after, state_key
from isthmus.entities.limit import Limits
from isthmus.entities.queue import Queue
from isthmus.entities.runtime import Runtime
from isthmus.entities.selection import Selection, compile_rule
from isthmus.entities.staging import Callback, Commit, Staging
from isthmus.entities.topic import Topic
from isthmus.errors import (
    EntityExistsError,
    EntityNotFoundError,
    InvalidArgumentError,
    NotAllowedError,
    QuotaExceededError,
    StoreError,
)

__all__ = ["Commit", "Engine"]

_FORMAT = b"1"
_DEAD_LETTER = "/$DeadLetterQueue"
_AT_ONCE = 1000
_HOUSEKEEPING_MS = 10_000
_T = TypeVar("_T", QueueDescription, TopicDescription, SubscriptionDescription)


@dataclass(slots=True)
class _Subscription:
    entry: Entry
    queue: Queue
    rules: dict[str, Entry] = field(default_factory=dict)


@dataclass(slots=True)
class _Topic:
    entry: Entry
    topic: Topic
    subscriptions: dict[str, _Subscription] = field(default_factory=dict)


@dataclass(slots=True)
class _Queue:
    entry: Entry
    queue: Queue


class Engine:
    """Everything one namespace holds. Single-threaded; no I/O but through the store.

    The owner's loop: when `on_staged` was called (or `has_staged`), ``commit = begin_commit()``, then ``store.sync()``
    in a thread, then ``end_commit(commit)`` on the loop, or ``fail_commit(commit, error)`` if the sync raised. Commits
    end in the order they began; more may be staged and begun while one is synced.

    Args:
        store: where everything lies; the owner closes it.
        clock: tells wall time.
        limits: what is refused.
        random_bytes: source of lock tokens and message ids.

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
    ) -> None:
        self._store = store
        self._clock = clock
        self._limits = limits
        self._staging = Staging(store)
        self._staging.on_refused = self._fail
        self._queues: dict[str, _Queue] = {}
        self._topics: dict[str, _Topic] = {}
        self._numbers: dict[int, Intake] = {}
        self._commits: list[Commit] = []
        self._wakes: list[tuple[int, int, Queue]] = []
        self._wake_at: dict[Queue, int] = {}
        self._wake_count = 0
        self._next_housekeeping_ms = 0
        self._idle: set[Intake] = set()
        self._check_format()
        self._context = Context(self._staging, clock, limits, random_bytes, self._wake)
        self._next_number = 1
        self._load()

    # ---- start and failure

    def _check_format(self) -> None:
        found = self._store.get(FORMAT)
        if found is None:
            self._staging.batch.put(FORMAT, _FORMAT)
        elif found != _FORMAT:
            raise StoreError(
                f"the store has format {found.decode(errors='replace')}, this release reads {_FORMAT.decode()}; "
                "use the release that wrote it"
            )

    def _load(self) -> None:
        self._next_number = int(self._store.get(COUNTER) or b"1")
        first = bytes((CATALOG,))
        for _, value in self._store.scan(first, after(first)):
            self._load_entry(unpack_entry(value))
        for topic in self._topics.values():
            for subscription in topic.subscriptions.values():
                self._apply_subscription(topic, subscription)

    def _load_entry(self, entry: Entry) -> None:
        names = [name.lower() for name in entry.names]
        if entry.kind == "queue":
            self._queues[names[0]] = _Queue(entry, self._make_queue(entry))
            self._apply_queue(self._queues[names[0]])
        elif entry.kind == "topic":
            topic = Topic(entry.names[0], entry.number, self._context, self._store.get(state_key(entry.number)))
            self._numbers[entry.number] = topic
            self._topics[names[0]] = _Topic(entry, topic)
            self._apply_topic(self._topics[names[0]])
        elif entry.kind == "subscription":
            self._topics[names[0]].subscriptions[names[1]] = _Subscription(entry, self._make_queue(entry))
        else:
            self._topics[names[0]].subscriptions[names[1]].rules[names[2]] = entry

    def _make_queue(self, entry: Entry) -> Queue:
        path = "/Subscriptions/".join(entry.names)
        queue = Queue(path, entry.number, self._context, self._store.get(state_key(entry.number)))
        dead_number = entry.number + 1
        dead = Queue(path + _DEAD_LETTER, dead_number, self._context, self._store.get(state_key(dead_number)))
        dead.become_dead_letter_queue()
        queue.dead_letters = dead
        self._numbers[entry.number] = queue
        self._numbers[dead_number] = dead
        return queue

    def _reload(self) -> None:
        """Go back to what the store holds; objects that receivers hold stay the same ones."""
        old = dict(self._numbers)
        self._queues.clear()
        self._topics.clear()
        self._numbers.clear()
        self._wakes.clear()
        self._wake_at.clear()
        self._context.calendar.reload()
        self._load()
        for number, fresh in list(self._numbers.items()):
            kept = old.pop(number, None)
            if kept is not None:
                kept.is_deleted = False
                kept.reload(self._store.get(state_key(number)))
                self._exchange(fresh, kept)
        for gone in old.values():
            gone.is_deleted = True
        for topic in self._topics.values():
            self._apply_topic(topic)
            for subscription in topic.subscriptions.values():
                self._apply_subscription(topic, subscription)
        for queue in self._queues.values():
            self._apply_queue(queue)
        for member in (*old.values(), *self._numbers.values()):
            if isinstance(member, Queue):
                member.notify()

    def _exchange(self, fresh: Intake, kept: Intake) -> None:
        self._numbers[kept.number] = kept
        for queue in self._queues.values():
            if queue.queue is fresh and isinstance(kept, Queue):
                queue.queue = kept
        for topic in self._topics.values():
            if topic.topic is fresh and isinstance(kept, Topic):
                topic.topic = kept
            for subscription in topic.subscriptions.values():
                if subscription.queue is fresh and isinstance(kept, Queue):
                    subscription.queue = kept

    # ---- queues

    def create_queue(self, name: str, description: QueueDescription | None = None) -> QueueDescription:
        """Make a queue; its description as stored. Like every change it is durable with the next commit.

        Raises:
            EntityExistsError: a queue or topic of that name is there.
            InvalidArgumentError: the name or a setting is not allowed.
            QuotaExceededError: the namespace has all the entities it may have.
        """
        key = self._check_new(name, "queue")
        described = replace(description or QueueDescription())
        self._check_description(described)
        entry = self._entry("queue", (name,), self._number(2), described)
        self._queues[key] = _Queue(entry, self._make_queue(entry))
        self._apply_queue(self._queues[key])
        self._stage(entry)
        return described

    def update_queue(self, name: str, description: QueueDescription) -> QueueDescription:
        """Replace a queue's description. RequiresSession, RequiresDuplicateDetection, EnablePartitioning are fixed.

        Raises:
            EntityNotFoundError: no such queue.
            InvalidArgumentError: a setting is not allowed or fixed.
        """
        queue = self._queue(name)
        self._change(queue.entry, description)
        self._apply_queue(queue)
        queue.queue.notify()
        return description

    def delete_queue(self, name: str) -> None:
        """Remove a queue with its messages and dead-letter queue.

        Raises:
            EntityNotFoundError: no such queue.
        """
        queue = self._queue(name)
        del self._queues[name.lower()]
        self._unstage(queue.entry)
        self._wipe(queue.queue)

    def get_queue(self, name: str) -> QueueDescription | None:
        """A queue's description; None if there is no such queue."""
        found = self._queues.get(name.lower())
        return _described(found.entry, QueueDescription) if found else None

    def list_queues(self) -> list[tuple[str, QueueDescription]]:
        """Names (as created) and descriptions, ordered by lower-case name."""
        return [
            (queue.entry.names[0], _described(queue.entry, QueueDescription))
            for _, queue in sorted(self._queues.items())
        ]

    # ---- topics

    def create_topic(self, name: str, description: TopicDescription | None = None) -> TopicDescription:
        """Make a topic; errors as `create_queue`."""
        key = self._check_new(name, "topic")
        described = replace(description or TopicDescription())
        self._check_description(described)
        entry = self._entry("topic", (name,), self._number(1), described)
        topic = Topic(name, entry.number, self._context, None)
        self._numbers[entry.number] = topic
        self._topics[key] = _Topic(entry, topic)
        self._apply_topic(self._topics[key])
        self._stage(entry)
        return described

    def update_topic(self, name: str, description: TopicDescription) -> TopicDescription:
        """Replace a topic's description; errors as `update_queue`."""
        topic = self._topic(name)
        self._change(topic.entry, description)
        self._apply_topic(topic)
        return description

    def delete_topic(self, name: str) -> None:
        """Remove a topic with its subscriptions and their messages.

        Raises:
            EntityNotFoundError: no such topic.
        """
        topic = self._topic(name)
        for subscription in list(topic.subscriptions):
            self.delete_subscription(name, subscription)
        del self._topics[name.lower()]
        self._unstage(topic.entry)
        topic.topic.wipe()
        self._numbers.pop(topic.entry.number, None)

    def get_topic(self, name: str) -> TopicDescription | None:
        """A topic's description; None if there is no such topic."""
        found = self._topics.get(name.lower())
        return _described(found.entry, TopicDescription) if found else None

    def list_topics(self) -> list[tuple[str, TopicDescription]]:
        """Names (as created) and descriptions, ordered by lower-case name."""
        return [
            (topic.entry.names[0], _described(topic.entry, TopicDescription))
            for _, topic in sorted(self._topics.items())
        ]

    # ---- subscriptions

    def create_subscription(
        self,
        topic: str,
        name: str,
        description: SubscriptionDescription | None = None,
        default_rule: RuleDescription | None = None,
    ) -> SubscriptionDescription:
        """Make a subscription with one rule: `default_rule`, or ``$Default`` that selects everything.

        Raises:
            EntityNotFoundError: no such topic.
            EntityExistsError: the topic has a subscription of that name.
            InvalidArgumentError: the name, a setting or the rule is not allowed.
            QuotaExceededError: the topic has all the subscriptions it may have.
        """
        owner = self._topic(topic)
        if name.lower() in owner.subscriptions:
            raise EntityExistsError(f"{owner.entry.names[0]}/Subscriptions/{name}")
        check_name("subscription", name, self._limits.max_subscription_name_characters)
        if len(owner.subscriptions) >= self._limits.max_subscriptions_per_topic:
            raise QuotaExceededError(f"'{topic}' has {len(owner.subscriptions)} subscriptions, as many as it may have.")
        described = replace(description or SubscriptionDescription())
        self._check_description(described)
        rule = replace(default_rule or RuleDescription(DEFAULT_RULE_NAME))
        rule.name = rule.name or DEFAULT_RULE_NAME
        self._check_rule(rule)
        names = (owner.entry.names[0], name)
        entry = self._entry("subscription", names, self._number(2), described)
        subscription = _Subscription(entry, self._make_queue(entry))
        owner.subscriptions[name.lower()] = subscription
        self._stage(entry)
        self._add_rule(subscription, rule)
        self._apply_subscription(owner, subscription)
        return described

    def update_subscription(
        self, topic: str, name: str, description: SubscriptionDescription
    ) -> SubscriptionDescription:
        """Replace a subscription's description; errors as `update_queue`."""
        owner, subscription = self._subscription(topic, name)
        self._change(subscription.entry, description)
        self._apply_subscription(owner, subscription)
        subscription.queue.notify()
        return description

    def delete_subscription(self, topic: str, name: str) -> None:
        """Remove a subscription with its messages.

        Raises:
            EntityNotFoundError: no such subscription.
        """
        owner, subscription = self._subscription(topic, name)
        del owner.subscriptions[name.lower()]
        owner.topic.unsubscribe(name.lower())
        for rule in subscription.rules.values():
            self._unstage(rule)
        self._unstage(subscription.entry)
        self._wipe(subscription.queue)

    def get_subscription(self, topic: str, name: str) -> SubscriptionDescription | None:
        """A subscription's description; None if there is no such topic or subscription."""
        owner = self._topics.get(topic.lower())
        found = owner.subscriptions.get(name.lower()) if owner else None
        return _described(found.entry, SubscriptionDescription) if found else None

    def list_subscriptions(self, topic: str) -> list[tuple[str, SubscriptionDescription]]:
        """Names and descriptions, ordered by lower-case name.

        Raises:
            EntityNotFoundError: no such topic.
        """
        return [
            (subscription.entry.names[1], _described(subscription.entry, SubscriptionDescription))
            for _, subscription in sorted(self._topic(topic).subscriptions.items())
        ]

    # ---- rules

    def create_rule(self, topic: str, subscription: str, rule: RuleDescription) -> RuleDescription:
        """Add a rule; messages accepted from then on see it.

        Raises:
            EntityNotFoundError: no such subscription.
            EntityExistsError: it has a rule of that name.
            InvalidArgumentError: the name is not allowed, or an expression does not parse (RuleSyntaxError).
        """
        owner, found = self._subscription(topic, subscription)
        if rule.name.lower() in found.rules:
            raise EntityExistsError(f"{found.queue.path}/Rules/{rule.name}")
        if len(found.rules) >= self._limits.max_rules_per_subscription:
            raise QuotaExceededError(f"'{found.queue.path}' has {len(found.rules)} rules, as many as it may have.")
        added = replace(rule)
        self._check_rule(added)
        self._add_rule(found, added)
        self._apply_subscription(owner, found)
        return added

    def update_rule(self, topic: str, subscription: str, rule: RuleDescription) -> RuleDescription:
        """Replace the rule of the same name.

        Raises:
            EntityNotFoundError: no such subscription or rule.
            InvalidArgumentError: an expression does not parse (RuleSyntaxError).
        """
        owner, found = self._subscription(topic, subscription)
        entry = found.rules.get(rule.name.lower())
        if entry is None:
            raise EntityNotFoundError(f"{found.queue.path}/Rules/{rule.name}")
        changed = replace(rule, created_at_ms=entry.created_at_ms)
        self._check_rule(changed)
        entry.description = changed
        entry.updated_at_ms = self._clock.wall_ms()
        self._stage(entry)
        self._apply_subscription(owner, found)
        return changed

    def delete_rule(self, topic: str, subscription: str, name: str) -> None:
        """Remove a rule.

        Raises:
            EntityNotFoundError: no such subscription or rule.
        """
        owner, found = self._subscription(topic, subscription)
        entry = found.rules.pop(name.lower(), None)
        if entry is None:
            raise EntityNotFoundError(f"{found.queue.path}/Rules/{name}")
        self._unstage(entry)
        self._apply_subscription(owner, found)

    def get_rule(self, topic: str, subscription: str, name: str) -> RuleDescription | None:
        """A rule; None if there is none of that name."""
        owner = self._topics.get(topic.lower())
        found = owner.subscriptions.get(subscription.lower()) if owner else None
        entry = found.rules.get(name.lower()) if found else None
        return _rule(entry) if entry else None

    def list_rules(self, topic: str, subscription: str) -> list[RuleDescription]:
        """Rules, ordered by lower-case name.

        Raises:
            EntityNotFoundError: no such subscription.
        """
        _, found = self._subscription(topic, subscription)
        return [_rule(entry) for _, entry in sorted(found.rules.items())]

    # ---- looking

    def runtime(self, path: str) -> Runtime:
        """Counts, size and times of the queue, topic, subscription or dead-letter queue at a path.

        Raises:
            EntityNotFoundError: nothing is there.
        """
        entry, member = self._find(path)
        runtime = Runtime(
            active_message_count=member.active_count,
            scheduled_message_count=member.scheduled_count,
            deferred_message_count=member.deferred_count,
            size_bytes=member.stored_bytes(),
            created_at_ms=entry.created_at_ms,
            updated_at_ms=entry.updated_at_ms,
            accessed_at_ms=member.accessed_at_ms,
        )
        runtime.message_count = member.active_count + member.scheduled_count + member.deferred_count
        if isinstance(member, Queue):
            runtime.locked_message_count = member.locked_count
            if member.dead_letters is not None:
                runtime.dead_letter_message_count = member.dead_letters.active_count
                runtime.message_count += member.dead_letters.active_count
        topic = self._topics.get(entry.names[0].lower()) if isinstance(member, Topic) else None
        if topic is not None:
            filters = [_rule(rule).filter for sub in topic.subscriptions.values() for rule in sub.rules.values()]
            runtime.subscription_count = len(topic.subscriptions)
            runtime.correlation_filter_count = sum(isinstance(one, CorrelationFilter) for one in filters)
            runtime.sql_filter_count = sum(isinstance(one, SqlFilter) for one in filters)
        return runtime

    def canonical_name(self, path: str) -> str:
        """The path in the spelling in which the entity was created.

        Raises:
            EntityNotFoundError: nothing is there.
        """
        return self._find(path)[1].path

    def _find(self, path: str) -> tuple[Entry, Intake]:
        address = parse_address(path)
        entry: Entry | None = None
        member: Intake | None = None
        topic = self._topics.get(address.name)
        if address.subscription is not None:
            subscription = topic.subscriptions.get(address.subscription) if topic else None
            if subscription is not None:
                entry, member = subscription.entry, subscription.queue
        elif topic is not None and not address.suffix:
            entry, member = topic.entry, topic.topic
        elif address.name in self._queues:
            queue = self._queues[address.name]
            entry, member = queue.entry, queue.queue
        if address.suffix == "dead-letter" and isinstance(member, Queue):
            member = member.dead_letters
        elif address.suffix:
            member = None
        if entry is None or member is None:
            raise EntityNotFoundError(path)
        return entry, member

    def sender(self, path: str) -> Queue | Topic:
        """What takes messages at a path, as an AMQP address has it.

        Raises:
            EntityNotFoundError: nothing is there.
            NotAllowedError: it takes no sends (a subscription, a dead-letter queue).
        """
        entry, member = self._find(path)
        if isinstance(member, Topic):
            return member
        if isinstance(member, Queue) and entry.kind == "queue" and member.dead_letters is not None:
            return member
        raise NotAllowedError(f"'{member.path}' takes no sends; send to its queue or topic.")

    def receiver(self, path: str) -> Queue:
        """What gives messages at a path.

        Raises:
            EntityNotFoundError: nothing is there.
            NotAllowedError: it gives none (a topic).
        """
        _, member = self._find(path)
        if isinstance(member, Queue):
            return member
        raise NotAllowedError(f"'{member.path}' is a topic; receive from one of its subscriptions.")

    # ---- group commit

    @property
    def on_staged(self) -> Callback | None:
        """Called once each time something is staged where nothing was; set by the owner."""
        return self._staging.on_staged

    @on_staged.setter
    def on_staged(self, callback: Callback | None) -> None:
        self._staging.on_staged = callback

    @property
    def has_staged(self) -> bool:
        """Whether `begin_commit` has anything to do."""
        return self._staging.has_staged

    def begin_commit(self) -> Commit | None:
        """Write all that is staged, not yet durable; None if nothing is.

        Raises:
            StoreError: the store refused; everything staged or uncommitted has failed as in `fail_commit`.
        """
        commit = self._staging.begin()
        if commit is not None:
            self._commits.append(commit)
        return commit

    def end_commit(self, commit: Commit) -> None:
        """After the sync: make the commit's messages visible, call back, notify listeners.

        A commit that has failed already (with an earlier one) is passed over.
        """
        if commit not in self._commits:
            return
        self._commits.remove(commit)
        for callback in commit.callbacks:
            callback()
        for member, sealed in commit.sealed:
            member.publish(sealed)

    def fail_commit(self, commit: Commit, error: Exception) -> None:
        """After a failed sync: this commit, later ones and all that is staged fail.

        Their `on_failed` callbacks get the error, the store is reopened, and every entity goes back to what the disk
        holds, as after a restart: locks are lost, what was acknowledged is there. What had been refused may be there
        too, if the disk took it before it failed: the outcome is unknown, and a sender that repeats may duplicate.

        Raises:
            StoreError: the store cannot be reopened; the namespace cannot go on.
        """
        if commit in self._commits:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        failures = [callback for commit in self._commits for callback in commit.failures]
        failures += self._staging.drop()
        self._commits.clear()
        for member in self._numbers.values():
            if isinstance(member, Queue):
                member.release_store()
        try:
            self._store.reopen()
            self._reload()
        finally:
            for callback in failures:
                callback(error)

    def close(self) -> None:
        """Commit and sync what is staged; the store is the owner's to close.

        Raises:
            StoreError: the store refused.
        """
        self.begin_commit()
        if self._commits:
            self._store.sync()
        for commit in list(self._commits):
            self.end_commit(commit)

    # ---- time

    def _wake(self, queue: Queue, at_ms: int) -> None:
        known = self._wake_at.get(queue)
        if known is None or at_ms < known:
            self._wake_at[queue] = at_ms
            self._wake_count += 1
            heapq.heappush(self._wakes, (at_ms, self._wake_count, queue))

    def tick(self, now_ms: int | None = None) -> int | None:
        """Do what time asks for: lock expiry, TTL, due schedules, AutoDeleteOnIdle; bounded work per call.

        Returns:
            Wall ms when to call again (now, if more is due); None if nothing is waited for. `on_staged` tells of
            changes to commit.

        Raises:
            StoreError: as `begin_commit`.
        """
        now = self._clock.wall_ms() if now_ms is None else now_ms
        self._expire_locks(now)
        self._activate(now)
        self._expire_messages(now)
        if now >= self._next_housekeeping_ms:
            self._housekeep(now)
        calendar = self._context.calendar
        waits = [calendar.next_due_ms, calendar.next_expiry_ms, self._wakes[0][0] if self._wakes else None]
        if self._numbers:
            waits.append(self._next_housekeeping_ms)
        return min((at_ms for at_ms in waits if at_ms is not None), default=None)

    def _expire_locks(self, now: int) -> None:
        due: list[Queue] = []
        while self._wakes and self._wakes[0][0] <= now:
            at_ms, _, queue = heapq.heappop(self._wakes)
            if self._wake_at.get(queue) == at_ms:
                del self._wake_at[queue]
                due.append(queue)
        for queue in due:
            next_ms = None if queue.is_deleted else queue.expire_locks(now)
            if next_ms is not None:
                self._wake(queue, next_ms)

    def _activate(self, now: int) -> None:
        due = self._context.calendar.due(now, _AT_ONCE)
        if not due:
            return
        by_number: dict[int, list[tuple[int, int]]] = {}
        for due_ms, number, sequence in due:
            by_number.setdefault(number, []).append((due_ms, sequence))
        for number, messages in by_number.items():
            member = self._numbers.get(number)
            if member is not None:
                member.activate(messages, now)
            else:
                for due_ms, sequence in messages:
                    self._context.calendar.unschedule(due_ms, number, sequence)
        self._context.calendar.advance()

    def _expire_messages(self, now: int) -> None:
        calendar = self._context.calendar
        runs = calendar.expired(now, _AT_ONCE)
        if not runs:
            return
        budget = _AT_ONCE
        for bucket, number, first, last in runs:
            member = self._numbers.get(number)
            left = None
            if isinstance(member, Queue):
                left = member.expire_messages(first, last, min(now, bucket * BUCKET_MS), _AT_ONCE)
            calendar.settle(bucket, number, first, left)
            budget -= min(last - first + 1, _AT_ONCE)
            if budget <= 0:
                break
        calendar.advance()

    def _housekeep(self, now: int) -> None:
        """Every ten seconds: idle entities let go of what they hold, and those idle for too long go themselves."""
        self._next_housekeeping_ms = now + _HOUSEKEEPING_MS
        idle = {
            member
            for member in self._numbers.values()
            if isinstance(member, Queue) and now - member.accessed_at_ms > _HOUSEKEEPING_MS
        }
        for member in idle - self._idle:
            if isinstance(member, Queue):
                member.housekeep()
        self._idle = set(idle)
        self._delete_idle(now)

    def _delete_idle(self, now: int) -> None:
        for name, queue in list(self._queues.items()):
            limit_ms = _described(queue.entry, QueueDescription).auto_delete_on_idle_ms
            if limit_ms < INFINITE_MS and now - _last_use(queue.entry, queue.queue) > limit_ms:
                self.delete_queue(name)
        for name, topic in list(self._topics.items()):
            for key, subscription in list(topic.subscriptions.items()):
                limit_ms = _described(subscription.entry, SubscriptionDescription).auto_delete_on_idle_ms
                if limit_ms < INFINITE_MS and now - _last_use(subscription.entry, subscription.queue) > limit_ms:
                    self.delete_subscription(name, key)
            limit_ms = _described(topic.entry, TopicDescription).auto_delete_on_idle_ms
            if limit_ms < INFINITE_MS and now - _last_use(topic.entry, topic.topic) > limit_ms:
                self.delete_topic(name)

    # ---- inside

    def _queue(self, name: str) -> _Queue:
        found = self._queues.get(name.lower())
        if found is None:
            raise EntityNotFoundError(name)
        return found

    def _topic(self, name: str) -> _Topic:
        found = self._topics.get(name.lower())
        if found is None:
            raise EntityNotFoundError(name)
        return found

    def _subscription(self, topic: str, name: str) -> tuple[_Topic, _Subscription]:
        owner = self._topic(topic)
        found = owner.subscriptions.get(name.lower())
        if found is None:
            raise EntityNotFoundError(f"{topic}/Subscriptions/{name}")
        return owner, found

    def _check_new(self, name: str, kind: str) -> str:
        key = name.lower()
        if key in self._queues or key in self._topics:
            raise EntityExistsError(name)
        check_name(kind, name, self._limits.max_entity_name_characters)
        if len(self._queues) + len(self._topics) >= self._limits.max_entities:
            raise QuotaExceededError(f"The namespace has {self._limits.max_entities} entities, as many as it may have.")
        return key

    def _check_description(self, description: Description) -> None:
        limits = self._limits
        if isinstance(description, QueueDescription | SubscriptionDescription):
            _check_range("LockDuration (ms)", description.lock_duration_ms, 1, limits.max_lock_duration_ms)
            _check_range("MaxDeliveryCount", description.max_delivery_count, 1, limits.max_delivery_count)
            if description.requires_session:
                raise InvalidArgumentError("RequiresSession: this namespace has no session-enabled entities.")
            if description.forward_to or description.forward_dead_lettered_messages_to:
                raise InvalidArgumentError("ForwardTo: this namespace does not forward between entities.")
        if isinstance(description, QueueDescription | TopicDescription):
            window = description.duplicate_detection_history_time_window_ms
            low, high = limits.min_duplicate_window_ms, limits.max_duplicate_window_ms
            _check_range("DuplicateDetectionHistoryTimeWindow (ms)", window, low, high)
            _check_range("MaxSizeInMegabytes", description.max_size_in_megabytes, 1, 1 << 30)
            if description.enable_partitioning:
                raise InvalidArgumentError("EnablePartitioning: this namespace has no partitioned entities.")
        if not isinstance(description, RuleDescription):
            _check_range("DefaultMessageTimeToLive (ms)", description.default_message_time_to_live_ms, 1, INFINITE_MS)
            low = limits.min_auto_delete_on_idle_ms
            _check_range("AutoDeleteOnIdle (ms)", description.auto_delete_on_idle_ms, low, INFINITE_MS)

    def _check_rule(self, rule: RuleDescription) -> None:
        check_name("rule", rule.name, self._limits.max_subscription_name_characters)
        compile_rule(rule)
        rule.created_at_ms = rule.created_at_ms or self._clock.wall_ms()

    def _add_rule(self, subscription: _Subscription, rule: RuleDescription) -> None:
        entry = self._entry("rule", (*subscription.entry.names, rule.name), 0, rule)
        subscription.rules[rule.name.lower()] = entry
        self._stage(entry)

    def _number(self, count: int) -> int:
        number = self._next_number
        self._next_number += count
        self._staging.batch.put(COUNTER, str(self._next_number).encode())
        return number

    def _entry(self, kind: str, names: tuple[str, ...], number: int, description: Description) -> Entry:
        now = self._clock.wall_ms()
        return Entry(kind, names, number, now, now, description)

    def _stage(self, entry: Entry) -> None:
        self._staging.batch.put(catalog_key(entry.kind, *entry.names), entry.pack())

    def _unstage(self, entry: Entry) -> None:
        self._staging.batch.delete(catalog_key(entry.kind, *entry.names))

    def _change(self, entry: Entry, description: Description) -> None:
        before = entry.description
        if type(before) is not type(description):
            raise InvalidArgumentError(f"'{entry.names[-1]}' is a {entry.kind}; its description has another type.")
        for name in ("requires_session", "requires_duplicate_detection", "enable_partitioning"):
            if getattr(before, name, None) != getattr(description, name, None):
                raise InvalidArgumentError(f"'{name}' of '{entry.names[-1]}' cannot be changed; make the entity anew.")
        self._check_description(description)
        entry.description = replace(description)
        entry.updated_at_ms = self._clock.wall_ms()
        self._stage(entry)

    def _wipe(self, queue: Queue) -> None:
        for member in (queue, queue.dead_letters):
            if member is not None:
                member.wipe()
                self._numbers.pop(member.number, None)
                self._wake_at.pop(member, None)

    def _apply_queue(self, queue: _Queue) -> None:
        described = _described(queue.entry, QueueDescription)
        size = described.max_message_size_in_kilobytes
        window = described.duplicate_detection_history_time_window_ms
        queue.queue.configure(
            status=described.status,
            default_ttl_ms=described.default_message_time_to_live_ms,
            lock_duration_ms=described.lock_duration_ms,
            max_delivery_count=described.max_delivery_count,
            dead_letters_expired=described.dead_lettering_on_message_expiration,
            requires_session=described.requires_session,
            quota_megabytes=described.max_size_in_megabytes,
            max_message_size_bytes=size << 10 if size else None,
            duplicate_window_ms=window if described.requires_duplicate_detection else 0,
        )
        self._apply_dead_letters(queue.queue, described.status)

    def _apply_dead_letters(self, queue: Queue, status: EntityStatus) -> None:
        if queue.dead_letters is not None:
            queue.dead_letters.configure(
                status=status if status == EntityStatus.DISABLED else EntityStatus.ACTIVE,
                default_ttl_ms=INFINITE_MS,
                lock_duration_ms=queue.lock_duration_ms,
                max_delivery_count=self._limits.max_delivery_count,
                dead_letters_expired=False,
            )

    def _apply_topic(self, topic: _Topic) -> None:
        described = _described(topic.entry, TopicDescription)
        size = described.max_message_size_in_kilobytes
        window = described.duplicate_detection_history_time_window_ms
        topic.topic.configure(
            status=described.status,
            default_ttl_ms=described.default_message_time_to_live_ms,
            quota_megabytes=described.max_size_in_megabytes,
            max_message_size_bytes=size << 10 if size else None,
            duplicate_window_ms=window if described.requires_duplicate_detection else 0,
        )

    def _apply_subscription(self, topic: _Topic, subscription: _Subscription) -> None:
        described = _described(subscription.entry, SubscriptionDescription)
        subscription.queue.configure(
            status=described.status,
            default_ttl_ms=described.default_message_time_to_live_ms,
            lock_duration_ms=described.lock_duration_ms,
            max_delivery_count=described.max_delivery_count,
            dead_letters_expired=described.dead_lettering_on_message_expiration,
            requires_session=described.requires_session,
        )
        self._apply_dead_letters(subscription.queue, described.status)
        topic.topic.subscribe(
            subscription.entry.names[1].lower(),
            subscription.queue,
            Selection([_rule(entry) for entry in subscription.rules.values()]),
            dead_letters_failures=described.dead_lettering_on_filter_evaluation_exceptions,
        )


def _described(entry: Entry, kind: type[_T]) -> _T:
    assert isinstance(entry.description, kind)
    return entry.description


def _rule(entry: Entry) -> RuleDescription:
    assert isinstance(entry.description, RuleDescription)
    return entry.description


def _last_use(entry: Entry, member: Intake) -> int:
    return max(entry.created_at_ms, entry.updated_at_ms, member.accessed_at_ms)


def _check_range(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise InvalidArgumentError(f"{name} is {value}; {low} to {high} is allowed.")
