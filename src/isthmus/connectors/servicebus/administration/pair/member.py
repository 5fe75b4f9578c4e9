"""One member of a pair, through azure-servicebus's administration client.

What it is: all requests of pairing to a namespace: its entities, and, in the parts, counts (`count`), steps and statuses
(`step`), and the marker of the active member (`marker`). What it is not: a decision
(`isthmus.topology.pair.difference`, `isthmus.pairing`).
Spec: Microsoft Learn, "Service Bus resource manager", Atom API; docs/how-to/recover-from-a-disaster.md.

Invariants:
    I1. Cached descriptions are returned only while the namespace reports that none has changed since before they were read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple, Self, TypeVar

from azure.core.exceptions import ResourceNotFoundError

from isthmus.connectors.servicebus.administration.client import administration_errors
from isthmus.connectors.servicebus.administration.listing import listed, listed_below
from isthmus.connectors.servicebus.administration.message_count import Counts
from isthmus.connectors.servicebus.administration.pair.client import PairClients
from isthmus.connectors.servicebus.administration.pair.count import PairCounts
from isthmus.connectors.servicebus.administration.pair.marker import PairMarker
from isthmus.connectors.servicebus.administration.pair.property import (
    describe_queue,
    describe_rule,
    describe_subscription,
    describe_topic,
)
from isthmus.connectors.servicebus.administration.pair.step import PairSteps
from isthmus.topology import NamespaceRef
from isthmus.topology.pair.description import Description
from isthmus.topology.pair.difference import Step

__all__ = ["PairMember"]

_Asked = TypeVar("_Asked")
_Answer = TypeVar("_Answer")


class _Read(NamedTuple):
    """Descriptions, and the catalog version before they were read; empty for none."""

    version: str
    descriptions: list[Description]


class PairMember:
    """A namespace of a pair. Its methods block; several threads may use it.

    Args:
        namespace: the namespace, with its connection.

    Attributes:
        alias: its name in the topology.
        endpoint: `host[:port]`, for errors.
    """

    def __init__(self, namespace: NamespaceRef) -> None:
        self.alias = namespace.alias
        self._clients = PairClients(namespace)
        self.endpoint = self._clients.endpoint
        self._counts = PairCounts(self._clients)
        self._steps = PairSteps(self._clients, self._counts)
        self._marker = PairMarker(self._clients)
        self._read: _Read | None = None

    def close(self) -> None:
        """Close all connections."""
        self._clients.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def map(self, work: Callable[[_Asked], _Answer], asked: Iterable[_Asked]) -> list[_Answer]:
        """As `PairClients.map`."""
        return self._clients.map(work, asked)

    # ---- entities

    def identity(self) -> str:
        """The namespace's identity.

        Raises:
            AdministrationError: no answer, or a refusal.
        """
        with administration_errors(self.endpoint):
            return self._clients.open().identity()

    @property
    def tells_changes(self) -> bool:
        """Whether the namespace has reported a catalog version, so that reading the descriptions again costs one request."""
        return self._read is not None and bool(self._read.version)

    def descriptions(self) -> list[Description]:
        """All queues, topics, subscriptions and rules.

        Raises:
            AdministrationError: no answer, or a refusal.
        """
        with administration_errors(self.endpoint):
            version = self._version()
            read = self._read
            if not version or read is None or read.version != version:
                read = self._read = _Read(version, self._ask_descriptions())
            return list(read.descriptions)

    def _version(self) -> str:
        opened = self._clients.open()
        opened.transport.namespace.catalog_version = ""
        opened.client.get_namespace_properties()
        return opened.transport.namespace.catalog_version

    def _ask_descriptions(self) -> list[Description]:
        queues = self._clients.submit(self._queues)
        topics = [describe_topic(each) for each in listed(self._clients.open().client.list_topics)]
        subscriptions = [each for found in self._clients.map(self._subscriptions, topics) for each in found]
        rules = [each for found in self._clients.map(self._rules, subscriptions) for each in found]
        return [*queues.result(), *topics, *subscriptions, *rules]

    def begin_descriptions(self) -> Future[list[Description]]:
        """Starts reading `descriptions`, after the reads that were started before; cancel the future if it is not needed."""
        return self._clients.read(self.descriptions)

    def _queues(self) -> list[Description]:
        return [describe_queue(each) for each in listed(self._clients.open().client.list_queues)]

    def _subscriptions(self, topic: Description) -> list[Description]:
        name = topic.names[0]
        found = listed_below(self._clients.open().client.list_subscriptions, name)
        return [describe_subscription(name, each) for each in found]

    def _rules(self, subscription: Description) -> list[Description]:
        topic, name = subscription.names
        found = listed_below(self._clients.open().client.list_rules, topic, name)
        return [describe_rule(topic, name, each) for each in found]

    def holds(self, entity: Description) -> bool:
        """Whether an entity or rule of this name exists now, of any kind.

        Raises:
            AdministrationError: no answer, or a refusal.
        """
        with administration_errors(self.endpoint):
            try:
                getattr(self._clients.open().client, f"get_{entity.kind}")(*entity.names)
            except ResourceNotFoundError:
                return False
            except AttributeError:  # a topic where a queue is requested, or vice versa
                return True
            return True

    # ---- parts, which document each method

    def counts(self, entities: Iterable[Description]) -> Mapping[str, Counts]:
        """As `PairCounts.of_all`."""
        return self._counts.of_all(entities)

    def make(self, step: Step, *, with_messages: bool = False) -> None:
        """As `PairSteps.make`."""
        self._steps.make(step, with_messages=with_messages)

    def set_status(self, entity: Description, status: str) -> None:
        """As `PairSteps.set_status`."""
        self._steps.set_status(entity, status)

    def read_marker(self, pair: str) -> Mapping[str, Any]:
        """As `PairMarker.read`."""
        return self._marker.read(pair)

    def write_marker(
        self, pair: str, value: Mapping[str, Any], *, unless: Callable[[Mapping[str, Any]], bool] = lambda marker: False
    ) -> bool:
        """As `PairMarker.write`."""
        return self._marker.write(pair, value, unless=unless)

    def delete_marker(self, pair: str) -> None:
        """As `PairMarker.delete`."""
        self._marker.delete(pair)
