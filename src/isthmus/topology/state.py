"""The existing entities of a namespace, or the entities that a task wants.

What it is: the part of an entity's description that planning uses. In an existing entity every field is known; in a
wanted one, None means "the existing value, or the service's default". What it is not: a full description of an entity.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

__all__ = [
    "DEFAULT_RULE",
    "EntityState",
    "GroupState",
    "LogState",
    "NamespaceState",
    "PlainState",
    "QueueState",
    "RuleState",
    "SubscriptionState",
    "TopicState",
]

DEFAULT_RULE = "$Default"
"""The rule that Service Bus gives a new subscription; it selects everything."""


# A text, or a name in quotes or brackets; a quote within one is doubled, which matches as two.
_QUOTED_OR_BLANK = re.compile(r"""('[^']*'|"[^"]*"|\[(?:[^\]]|\]\])*\])|\s+""")


def _words(text: str) -> str:
    return _QUOTED_OR_BLANK.sub(lambda found: found[1] or " ", text).strip()


@dataclass(frozen=True, slots=True)
class RuleState:
    """A rule: SQL text of its filter (correlation filters in a separate notation) and of its action."""

    name: str
    filter: str
    action: str = ""

    def selects_as(self, other: RuleState) -> bool:
        """Whether filter and action are the same except for white space between words; within a text or a name white space is significant."""
        return _words(self.filter) == _words(other.filter) and _words(self.action) == _words(other.action)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionState:
    """A subscription and its rules; names of topics and forwarding targets are entity paths. `initial_ttl_ms` is the default
    time to live of a new subscription; `default_ttl_ms` also changes an existing one.
    """

    name: str
    rules: tuple[RuleState, ...] | None = None
    lock_duration_ms: int | None = None
    max_delivery_count: int | None = None
    auto_delete_on_idle_ms: int | None = None
    requires_session: bool | None = None
    forward_to: str | None = None
    default_ttl_ms: int | None = None
    initial_ttl_ms: int | None = None
    dead_letters_expired: bool | None = None
    forward_dead_letters_to: str | None = None
    status: str | None = None

    def rule(self, name: str) -> RuleState | None:
        """The rule of this name; names are compared without case, as Service Bus does."""
        return next((rule for rule in self.rules or () if rule.name.lower() == name.lower()), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicState:
    """A topic.

    Attributes:
        duplicate_detection_ms: the history window, 0 if detection is off.
        keyless_detection_ms: of a wanted topic: the window at a namespace that keeps no duplicate keys; None: as elsewhere.
        initial_size_megabytes: the size of a new topic.
    """

    name: str
    subscriptions: tuple[SubscriptionState, ...] = ()
    duplicate_detection_ms: int | None = None
    keyless_detection_ms: int | None = None
    partitioned: bool | None = None
    initial_size_megabytes: int | None = None

    def subscription(self, name: str) -> SubscriptionState | None:
        """The subscription of this name, without case."""
        return next((each for each in self.subscriptions if each.name.lower() == name.lower()), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueState:
    """A queue; names of forwarding targets are entity paths.

    Attributes:
        dead_letters_expired: whether an expired message is dead-lettered (DeadLetteringOnMessageExpiration).
        duplicate_detection_ms: the history window, 0 if detection is off.
        keyless_detection_ms: of a wanted queue: the window at a namespace that keeps no duplicate keys; None: as elsewhere.
        initial_size_megabytes: the size of a new queue.
        status: `Active`, `Disabled`, `SendDisabled` or `ReceiveDisabled` (EntityStatus).
    """

    name: str
    lock_duration_ms: int | None = None
    max_delivery_count: int | None = None
    auto_delete_on_idle_ms: int | None = None
    requires_session: bool | None = None
    forward_to: str | None = None
    forward_dead_letters_to: str | None = None
    default_ttl_ms: int | None = None
    initial_ttl_ms: int | None = None
    dead_letters_expired: bool | None = None
    duplicate_detection_ms: int | None = None
    keyless_detection_ms: int | None = None
    partitioned: bool | None = None
    initial_size_megabytes: int | None = None
    status: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupState:
    """A consumer group of a log, with an offset for each partition.

    Attributes:
        start: of a wanted group: `now`, the end of the partitions at its creation, or `existing`, their beginning.
    """

    name: str
    start: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogState:
    """A log with partitions, e.g. a topic of Kafka.

    Attributes:
        initial_partitions: the number of partitions of a new log; an existing log keeps its number.
        initial_replication: replication factor of a new log; None: the cluster's default.
        partitions: number of partitions of an existing log.
        groups: the wanted groups, or the existing ones among those queried.
        like: alias and name of the log whose number of partitions a new log gets, if `initial_partitions` is None.
    """

    name: str
    initial_partitions: int | None = None
    initial_replication: int | None = None
    partitions: int | None = None
    groups: tuple[GroupState, ...] = ()
    like: tuple[str, str] | None = None

    def has_group(self, name: str) -> bool:
        """Whether this group exists."""
        return any(group.name == name for group in self.groups)


AUDIT_SUFFIX = ".$audit"
"""Suffix of the name of the subscription that records a plain topic for verification (`PlainState.audit`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainState:
    """An entity of a system that is neither Service Bus nor a log: a queue, or a topic (an exchange, an address).

    Attributes:
        is_topic: whether every subscription gets each message.
        subscriptions: of a topic: the subscriptions that keep messages for routes; the wanted ones, or the existing ones among those queried.
        audit: of a topic: the subscription that records its messages for verification, and is read without consuming.
        audit_ms: how long that subscription keeps a message; 0: for ever; None: there is none.
        is_read: whether a route reads it.
        remarks: remarks on the existing entity, e.g. that it drops messages; each a sentence without its subject.
    """

    name: str
    is_topic: bool = False
    subscriptions: tuple[str, ...] = ()
    audit: str = field(default="", compare=False)
    audit_ms: int | None = field(default=None, compare=False)
    is_read: bool = field(default=False, compare=False)
    remarks: tuple[str, ...] = field(default=(), compare=False)


EntityState: TypeAlias = TopicState | QueueState
"""The entities that a task may want at a Service Bus namespace."""

WantedState: TypeAlias = EntityState | LogState | PlainState
"""The entities that a pattern may want at a namespace of any kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceState:
    """The entities of a namespace, as far as they were queried.

    Attributes:
        alias: alias of the namespace.
        endpoint: `host[:port]` that answered; two aliases with the same are one namespace.
        identity: the identity that the namespace reports, independent of the host; likewise. Empty: unknown.
        topics: the existing ones among those queried.
        queues: the existing ones among those queried; also those with the name of a queried topic, as `topics` also has those
            with the name of a queried queue.
        logs: the existing ones among those queried.
        plain: the existing ones among those queried.
    """

    alias: str
    endpoint: str = ""
    identity: str = ""
    topics: tuple[TopicState, ...] = ()
    queues: tuple[QueueState, ...] = ()
    logs: tuple[LogState, ...] = ()
    plain: tuple[PlainState, ...] = ()

    def is_same_namespace(self, other: NamespaceState) -> bool:
        """Whether both are one namespace, by the host that answered or by the reported identity."""
        endpoints = self.endpoint.lower(), other.endpoint.lower()
        return bool(self.endpoint and endpoints[0] == endpoints[1]) or bool(
            self.identity and self.identity == other.identity
        )

    def log(self, name: str) -> LogState | None:
        """The log of this name; unlike at Service Bus, case is significant."""
        return next((each for each in self.logs if each.name == name), None)

    def plain_entity(self, name: str, *, is_topic: bool) -> PlainState | None:
        """The plain queue, or topic, of this name; unlike at Service Bus, case is significant."""
        return next((each for each in self.plain if each.name == name and each.is_topic == is_topic), None)

    def topic(self, name: str) -> TopicState | None:
        """The topic of this name, without case."""
        return next((each for each in self.topics if each.name.lower() == name.lower()), None)

    def queue(self, name: str) -> QueueState | None:
        """The queue of this name, without case."""
        return next((each for each in self.queues if each.name.lower() == name.lower()), None)

    def __iter__(self) -> Iterator[TopicState]:
        return iter(self.topics)
