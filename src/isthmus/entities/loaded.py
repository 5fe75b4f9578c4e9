"""The rows of entities in the catalog, together with their loaded objects.

What it is: three records, and typed access to rows. What it is not: the catalog (`registry`), or the behaviour of an entity.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

from isthmus.entities.catalog.catalog import Entry
from isthmus.entities.catalog.description import (
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from isthmus.entities.fragment.partitions import AnyPartitionedQueue
from isthmus.entities.fragment.topic import PartitionedTopic
from isthmus.entities.queue.queue import Queue
from isthmus.entities.topic.selection import CompiledRules
from isthmus.entities.topic.topic import Topic

__all__ = ["LoadedQueue", "LoadedSubscription", "LoadedTopic", "described", "rule_of"]

_T = TypeVar("_T", QueueDescription, TopicDescription, SubscriptionDescription)


@dataclass(slots=True)
class LoadedSubscription:
    """A subscription: its row, its messages, its rules by lower-case name, and the selection compiled from them."""

    entry: Entry
    queue: Queue | AnyPartitionedQueue
    rules: dict[str, Entry] = field(default_factory=dict)
    compiled: CompiledRules = field(default_factory=CompiledRules)


@dataclass(slots=True)
class LoadedTopic:
    """A topic: its row, its object, its subscriptions by lower-case name."""

    entry: Entry
    topic: Topic | PartitionedTopic
    subscriptions: dict[str, LoadedSubscription] = field(default_factory=dict)


@dataclass(slots=True)
class LoadedQueue:
    """A queue: its row and its messages."""

    entry: Entry
    queue: Queue | AnyPartitionedQueue


def described(entry: Entry, kind: type[_T]) -> _T:
    """The description in a row of that kind."""
    assert isinstance(entry.description, kind)
    return entry.description


def rule_of(entry: Entry) -> RuleDescription:
    """The rule in a row."""
    assert isinstance(entry.description, RuleDescription)
    return entry.description
