"""The engine of one namespace: entities by path, and group commit over all of them."""

from __future__ import annotations

import os
from collections.abc import Callable

from isthmus.clock import Clock
from isthmus.entities.description import (
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from isthmus.entities.journal import Journal
from isthmus.entities.limit import Limits
from isthmus.entities.queue import Queue
from isthmus.entities.runtime import Runtime
from isthmus.entities.topic import Topic

__all__ = ["Commit", "Engine"]


class Commit:
    """One written, not yet durable group of changes."""


class Engine:
    """Everything one namespace holds. Single-threaded; no I/O but through the store.

    The owner's loop: when `on_staged` was called (or `has_staged`), ``commit = begin_commit()``, then ``store.sync()``
    in a thread, then ``end_commit(commit)`` on the loop, or ``fail_commit(commit, error)`` if the sync raised. Commits
    end in the order they began; more may be staged and begun while one is synced.

    Attributes:
        on_staged: called once each time something is staged where nothing was; set by the owner.
    """

    on_staged: Callable[[], None] | None

    def __init__(
        self,
        store: Journal,
        clock: Clock,
        *,
        limits: Limits = Limits(),  # noqa: B008 - frozen
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        raise NotImplementedError

    # Metadata. Changes are staged like messages: durable with the next commit (callbacks as in Queue.accept).
    # All raise EntityNotFoundError, EntityExistsError or InvalidArgumentError; nothing is staged then.

    def create_queue(self, name: str, description: QueueDescription | None = None) -> QueueDescription:
        """Make a queue; its description as stored."""
        raise NotImplementedError

    def create_topic(self, name: str, description: TopicDescription | None = None) -> TopicDescription:
        """Make a topic."""
        raise NotImplementedError

    def create_subscription(
        self,
        topic: str,
        name: str,
        description: SubscriptionDescription | None = None,
        default_rule: RuleDescription | None = None,
    ) -> SubscriptionDescription:
        """Make a subscription with one rule: `default_rule`, or ``$Default`` that selects everything."""
        raise NotImplementedError

    def create_rule(self, topic: str, subscription: str, rule: RuleDescription) -> RuleDescription:
        """Add a rule; messages accepted from then on see it."""
        raise NotImplementedError

    def update_queue(self, name: str, description: QueueDescription) -> QueueDescription:
        """Replace a queue's description. RequiresSession, RequiresDuplicateDetection, EnablePartitioning are fixed."""
        raise NotImplementedError

    def update_topic(self, name: str, description: TopicDescription) -> TopicDescription:
        """Replace a topic's description."""
        raise NotImplementedError

    def update_subscription(
        self, topic: str, name: str, description: SubscriptionDescription
    ) -> SubscriptionDescription:
        """Replace a subscription's description."""
        raise NotImplementedError

    def update_rule(self, topic: str, subscription: str, rule: RuleDescription) -> RuleDescription:
        """Replace the rule of the same name."""
        raise NotImplementedError

    def delete_queue(self, name: str) -> None:
        """Remove a queue with its messages and dead-letter queue."""
        raise NotImplementedError

    def delete_topic(self, name: str) -> None:
        """Remove a topic with its subscriptions and their messages."""
        raise NotImplementedError

    def delete_subscription(self, topic: str, name: str) -> None:
        """Remove a subscription with its messages."""
        raise NotImplementedError

    def delete_rule(self, topic: str, subscription: str, name: str) -> None:
        """Remove a rule."""
        raise NotImplementedError

    def get_queue(self, name: str) -> QueueDescription | None:
        """A queue's description; None if there is no such queue."""
        raise NotImplementedError

    def get_topic(self, name: str) -> TopicDescription | None:
        """A topic's description; None if there is no such topic."""
        raise NotImplementedError

    def get_subscription(self, topic: str, name: str) -> SubscriptionDescription | None:
        """A subscription's description; None if there is no such topic or subscription."""
        raise NotImplementedError

    def get_rule(self, topic: str, subscription: str, name: str) -> RuleDescription | None:
        """A rule; None if there is none of that name."""
        raise NotImplementedError

    def list_queues(self) -> list[tuple[str, QueueDescription]]:
        """Names (as created) and descriptions, ordered by lower-case name."""
        raise NotImplementedError

    def list_topics(self) -> list[tuple[str, TopicDescription]]:
        """Names (as created) and descriptions, ordered by lower-case name."""
        raise NotImplementedError

    def list_subscriptions(self, topic: str) -> list[tuple[str, SubscriptionDescription]]:
        """Names and descriptions, ordered by lower-case name.

        Raises:
            EntityNotFoundError: no such topic.
        """
        raise NotImplementedError

    def list_rules(self, topic: str, subscription: str) -> list[RuleDescription]:
        """Rules, ordered by lower-case name.

        Raises:
            EntityNotFoundError: no such subscription.
        """
        raise NotImplementedError

    def runtime(self, path: str) -> Runtime:
        """Counts, size and times of the queue, topic, subscription or dead-letter queue at a path.

        Raises:
            EntityNotFoundError: nothing is there.
        """
        raise NotImplementedError

    def canonical_name(self, path: str) -> str:
        """The path in the spelling in which the entity was created.

        Raises:
            EntityNotFoundError: nothing is there.
        """
        raise NotImplementedError

    # Data.

    def sender(self, path: str) -> Queue | Topic:
        """What takes messages at a path, as an AMQP address has it.

        Raises:
            EntityNotFoundError: nothing is there.
            NotAllowedError: it takes no sends (a subscription, a dead-letter queue).
        """
        raise NotImplementedError

    def receiver(self, path: str) -> Queue:
        """What gives messages at a path.

        Raises:
            EntityNotFoundError: nothing is there.
            NotAllowedError: it gives none (a topic).
        """
        raise NotImplementedError

    @property
    def has_staged(self) -> bool:
        """Whether `begin_commit` has anything to do."""
        raise NotImplementedError

    def begin_commit(self) -> Commit | None:
        """Write all that is staged as one atomic batch, not yet durable; None if nothing is.

        Raises:
            StoreError: the store refused; everything staged or uncommitted has failed as in `fail_commit`.
        """
        raise NotImplementedError

    def end_commit(self, commit: Commit) -> None:
        """After the sync: make the commit's messages visible, call back, notify listeners."""
        raise NotImplementedError

    def fail_commit(self, commit: Commit, error: Exception) -> None:
        """After a failed sync: this commit, later ones and all that is staged fail.

        Their `on_failed` callbacks get the error, the store is reopened, and every entity goes back to what the disk
        holds, as after a restart: locks are lost, what was acknowledged is there.
        """
        raise NotImplementedError

    def tick(self, now_ms: int | None = None) -> int | None:
        """Do what time asks for: lock expiry, TTL, due schedules, detection windows, AutoDeleteOnIdle.

        Returns:
            Wall ms when to call again; None if nothing is waited for. `on_staged` tells of changes to commit.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Commit and sync what is staged, and let go of the store (which its owner closes)."""
        raise NotImplementedError
