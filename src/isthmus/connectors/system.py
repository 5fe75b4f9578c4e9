"""The driver's operations on a system besides its routes: administration, identity, checks, browsing.

What it is: the protocol that each kind but Service Bus implements in its module `system`, and the table of these modules. What it is not:
the moving of messages (`isthmus.bridge.port`), or Service Bus, whose connections `isthmus.replication.namespace_clients` keeps itself.

No operation but those of an administration takes a message or changes anything.

Invariants:
    I1. A kind whose extra is not installed is refused with the command that installs it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast, runtime_checkable

if TYPE_CHECKING:
    from isthmus.connectors.administration import Administration
    from isthmus.topology.model import NamespaceRef

__all__ = [
    "SYSTEMS",
    "BindingSystem",
    "CountingSystem",
    "KnowsRemoved",
    "LogSystem",
    "Peek",
    "System",
    "TellsBegins",
    "Waits",
    "removed_before",
    "system_of",
]

Peek = Callable[[int, int], Sequence[bytes]]
"""Encoded messages from a position on, up to a count, without taking them; empty where there are none."""

SYSTEMS = {
    "eventhubs": "isthmus.connectors.eventhubs.system:SYSTEM",
    "iothub": "isthmus.connectors.iothub.system:SYSTEM",
    "kafka": "isthmus.connectors.kafka.system:SYSTEM",
    "rabbitmq": "isthmus.connectors.rabbitmq.system:SYSTEM",
    "rabbitmq-streams": "isthmus.connectors.rabbitmq_streams.system:SYSTEM",
    "amqp": "isthmus.connectors.amqp.system:SYSTEM",
    "queuestorage": "isthmus.connectors.queuestorage.system:SYSTEM",
    "http": "isthmus.connectors.http.system:SYSTEM",
    "eventgrid": "isthmus.connectors.eventgrid.system:SYSTEM",
}


class Waits(NamedTuple):
    """The messages that wait for a route.

    Attributes:
        messages: how many, at most.
        oldest_ms: when the oldest of them was enqueued, wall time in ms; 0 where none waits, or the time is unknown.
        are_ready: whether a route can receive all of them now: one that moves none is then stalled even if no age is known. False for a count
            that may include hidden messages or records that are not messages.
    """

    messages: int = 0
    oldest_ms: int = 0
    are_ready: bool = False


class System(Protocol):
    """A kind of system. Options are those that reach a namespace of it; secrets are references. Calls block for seconds at most."""

    def administration(self, namespace: NamespaceRef) -> Administration:
        """The administration of a namespace; connects at the first call. For a system without one, it reports every entity as existing.

        Raises:
            MissingExtraError: its client library is not installed.
            IsthmusError: a setting is invalid.
        """
        ...

    def identity(self, options: Mapping[str, str]) -> str:
        """The system's identity, independent of the address used: the one that its source reports in `SourceOpened`.

        Raises:
            IsthmusError: it cannot be reached, or refuses.
        """
        ...

    def addresses(self, options: Mapping[str, str]) -> Sequence[str]:
        """The names of the system in errors about connections, e.g. `host:port`."""
        ...

    def check(self, options: Mapping[str, str], entity: str, *, reads: bool) -> None:
        """Tests, without effect, the access that a route needs to an entity: reading or writing.

        Raises:
            IsthmusError: it cannot be reached (retryable), or refuses; EntityNotFoundError where the entity does not exist.
        """
        ...

    def waiting(self, options: Mapping[str, str], entity: str, group: str) -> Waits | None:
        """The messages that wait in an entity; of a log, for a group. None where the system does not report them.

        Raises:
            IsthmusError: the count cannot be read.
        """
        ...

    def peek(self, options: Mapping[str, str], entity: str, *, names_partition: bool = False) -> Peek:
        """Opens an entity for browsing; `close` of the result is called at the end where it has that method.

        Args:
            options: the options that reach the namespace.
            entity: the entity to browse.
            names_partition: of a log: whether records without key get one that names their partition, as their route does.

        Raises:
            IsthmusError: it cannot be reached, refuses, or cannot be browsed.
        """
        ...


@runtime_checkable
class LogSystem(Protocol):
    """Operations beyond `System` of a kind whose entities are logs."""

    def uncommitted(self, options: Mapping[str, str], entity: str, group: str, peek: Peek) -> Peek:
        """The same browsing from a group's positions on.

        Raises:
            IsthmusError: the positions cannot be read.
        """
        ...

    def is_placed(self, options: Mapping[str, str], entity: str, group: str) -> bool:
        """Whether the group has a position in any partition; otherwise `uncommitted` browses all records.

        Raises:
            IsthmusError: the positions cannot be read.
        """
        ...


@runtime_checkable
class KnowsRemoved(Protocol):
    """A browsing from a group's positions that reports records removed before the group read them."""

    @property
    def removed(self) -> Mapping[int, tuple[int, int]]:
        """By partition, the group's position and the first one that exists; only where that is later.

        The beginning of the log is read before the group's position: records that the group reads in between are not counted.
        """
        ...


@runtime_checkable
class TellsBegins(Protocol):
    """A browsing of a log that reports the beginnings of its partitions."""

    def begins(self) -> Mapping[int, int]:
        """By partition, the first position that exists, or the next one of an empty partition.

        Raises:
            IsthmusError: the beginnings cannot be read.
        """
        ...


def removed_before(begins: Mapping[int, int], starts: Mapping[int, int]) -> dict[int, tuple[int, int]]:
    """The value of `KnowsRemoved.removed`.

    Args:
        begins: by partition, the first position that exists.
        starts: by partition, the group's position.
    """
    return {number: (start, begins[number]) for number, start in starts.items() if start < begins.get(number, 0)}


class CountingSystem(Protocol):
    """Operations beyond `System` of a kind whose queues cannot be browsed, and whose topics can be recorded (`NamespaceKind.audits_by`)."""

    def unsettled(self, options: Mapping[str, str], entity: str, group: str) -> int:
        """The number of messages of a queue that are ready or unacknowledged, as the system counted them some seconds ago.

        Raises:
            IsthmusError: the count cannot be read.
        """
        ...


@runtime_checkable
class BindingSystem(Protocol):
    """Operations beyond `System` of a kind whose topics keep messages for a route only where the route's queue is bound to them."""

    def is_bound(self, options: Mapping[str, str], entity: str, group: str) -> bool | None:
        """Whether what is published to an entity reaches a route's queue, which has the name of its group; None where that is not known.

        Raises:
            IsthmusError: the system cannot be reached, or refuses.
        """
        ...


def system_of(kind: str) -> System:
    """The system of a kind that is not Service Bus.

    Raises:
        KeyError: the kind is unknown.
    """
    module, _, name = SYSTEMS[kind].partition(":")
    return cast(System, getattr(importlib.import_module(module), name))
