"""Entities as they are at a namespace, or as a task wants them.

What it is: the part of an entity's description that planning looks at. In what exists every field is known; in what is
wanted, None means "whatever exists, or the service's default". What it is not: a full description of an entity.
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


# A text, or a name in quotes or brackets; a quote within one is doubled, which makes two of it.
_QUOTED_OR_BLANK = re.compile(r"""('[^']*'|"[^"]*"|\[(?:[^\]]|\]\])*\])|\s+""")


def _words(text: str) -> str:
    return _QUOTED_OR_BLANK.sub(lambda found: found[1] or " ", text).strip()


@dataclass(frozen=True, slots=True)
class RuleState:
    """A rule: SQL text of its filter (correlation filters in a writing of their own) and of its action."""

    name: str
    filter: str
    action: str = ""

    def selects_as(self, other: RuleState) -> bool:
        """Whether filter and action are the same but for white space between words; in a text or a name every blank counts."""
        return _words(self.filter) == _words(other.filter) and _words(self.action) == _words(other.action)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionState:
    """A subscription and its rules; names of topics and forwarding targets are entity paths. `initial_ttl_ms` is the default
    time to live that it is created with; `default_ttl_ms` also changes one that exists.
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
        duplicate_detection_ms: the history window, 0 where detection is off.
        keyless_detection_ms: of what is wanted: the window at a namespace that keeps no duplicate keys; None: as elsewhere.
        initial_size_megabytes: the size that it is created with.
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
        dead_letters_expired: whether a message whose life ends goes to the dead-letter queue (DeadLetteringOnMessageExpiration).
        duplicate_detection_ms: the history window, 0 where detection is off.
        keyless_detection_ms: of what is wanted: the window at a namespace that keeps no duplicate keys; None: as elsewhere.
        initial_size_megabytes: the size that it is created with.
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
        start: of what is wanted: `now`, where the partitions end when it is made, or `existing`, where they begin.
    """

    name: str
    start: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogState:
    """A log with partitions, e.g. a topic of Kafka.

    Attributes:
        initial_partitions: how many it is created with; one that exists keeps its number.
        initial_replication: copies of each that it is created with; None: as the cluster has it.
        partitions: of one that exists.
        groups: those that are wanted, or, of the ones asked for, those that exist.
        like: alias and name of the log whose number of partitions it is created with, where `initial_partitions` says none.
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
"""With this ends the name of what records a plain topic for verification (`PlainState.audit`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainState:
    """An entity of a system that is neither Service Bus nor a log: a queue, or a topic (an exchange, an address).

    Attributes:
        is_topic: whether it hands each message to every subscription.
        subscriptions: of a topic: what keeps messages for routes; those that are wanted, or, of the ones asked for, those that exist.
        audit: of a topic: which of the subscriptions records what passes it, for verification, and is read without taking anything.
        audit_ms: how long that one keeps a message; 0: for ever; None: there is none.
        is_read: whether a route reads it.
        remarks: what is to be told of it as it stands, e.g. that it drops messages; each a sentence without its subject.
    """

    name: str
    is_topic: bool = False
    subscriptions: tuple[str, ...] = ()
    audit: str = field(default="", compare=False)
    audit_ms: int | None = field(default=None, compare=False)
    is_read: bool = field(default=False, compare=False)
    remarks: tuple[str, ...] = field(default=(), compare=False)


EntityState: TypeAlias = TopicState | QueueState
"""What a task may want at a Service Bus namespace."""

WantedState: TypeAlias = EntityState | LogState | PlainState
"""What a pattern wants at a namespace of any kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceState:
    """What a namespace holds, as far as it was asked for.

    Attributes:
        alias: the namespace's.
        endpoint: `host[:port]` that answered; two aliases with the same are one namespace.
        identity: what the namespace calls itself, whatever the host by which it was reached; likewise. Empty: not known.
        topics: those that exist, of the ones asked for.
        queues: those that exist, of the ones asked for; also where a topic was asked for, as `topics` also has those that
            are where a queue was asked for.
        logs: those that exist, of the ones asked for.
        plain: those that exist, of the ones asked for.
    """

    alias: str
    endpoint: str = ""
    identity: str = ""
    topics: tuple[TopicState, ...] = ()
    queues: tuple[QueueState, ...] = ()
    logs: tuple[LogState, ...] = ()
    plain: tuple[PlainState, ...] = ()

    def is_same_namespace(self, other: NamespaceState) -> bool:
        """Whether both are one namespace, by the host that answered or by what it calls itself."""
        endpoints = self.endpoint.lower(), other.endpoint.lower()
        return bool(self.endpoint and endpoints[0] == endpoints[1]) or bool(
            self.identity and self.identity == other.identity
        )

    def log(self, name: str) -> LogState | None:
        """The log of this name; unlike at Service Bus case counts."""
        return next((each for each in self.logs if each.name == name), None)

    def plain_entity(self, name: str, *, is_topic: bool) -> PlainState | None:
        """The plain queue, or topic, of this name; unlike at Service Bus case counts."""
        return next((each for each in self.plain if each.name == name and each.is_topic == is_topic), None)

    def topic(self, name: str) -> TopicState | None:
        """The topic of this name, without case."""
        return next((each for each in self.topics if each.name.lower() == name.lower()), None)

    def queue(self, name: str) -> QueueState | None:
        """The queue of this name, without case."""
        return next((each for each in self.queues if each.name.lower() == name.lower()), None)

    def __iter__(self) -> Iterator[TopicState]:
        return iter(self.topics)
