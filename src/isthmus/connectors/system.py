"""What the driver needs of a system beside its routes: to administer, to look, to name.

What it is: the protocol that each kind but Service Bus fulfils in its module `system`, and where that is found. What it is not: the
moving of messages (`isthmus.bridge.port`), or Service Bus, whose connection `isthmus.replication.reach` keeps itself.

A look never takes a message and never changes anything.

Invariants:
    I1. A kind whose extra is not installed is refused with the line that installs it.
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
"""Encoded messages from a position on, so many at most, without taking them; empty where none follows."""

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
    """What is before a route.

    Attributes:
        messages: how many, at most.
        oldest_ms: when the oldest of them came, wall time in ms; 0 where none waits, or it is not known.
        are_ready: whether a route gets all of them now, so that one that moves none is stalled though no age is known. A count in which
            there may be what is hidden for a while, or what is no message, does not say that.
    """

    messages: int = 0
    oldest_ms: int = 0
    are_ready: bool = False


class System(Protocol):
    """A kind. Options are those that reach a namespace of it; secrets are references. Calls block for seconds at most."""

    def administration(self, namespace: NamespaceRef) -> Administration:
        """The administration of a namespace; connects at the first call. Where a system has none, one that finds every entity there.

        Raises:
            MissingExtraError: its client library is not installed.
            IsthmusError: a setting is of no use.
        """
        ...

    def identity(self, options: Mapping[str, str]) -> str:
        """What the system calls itself, whatever the address by which it was reached: what its source tells in `SourceOpened`.

        Raises:
            IsthmusError: it cannot be reached, or refuses.
        """
        ...

    def places(self, options: Mapping[str, str]) -> Sequence[str]:
        """What errors about connections call it, e.g. `host:port`."""
        ...

    def check(self, options: Mapping[str, str], entity: str, *, reads: bool) -> None:
        """Tries, without effect, what a route needs of an entity: to read it, or to write to it.

        Raises:
            IsthmusError: it cannot be reached (retryable), or refuses; EntityNotFoundError where there is no such entity.
        """
        ...

    def waiting(self, options: Mapping[str, str], entity: str, group: str) -> Waits | None:
        """What waits in an entity; of a log for a group. None where the system tells nobody.

        Raises:
            IsthmusError: it cannot be told.
        """
        ...

    def peek(self, options: Mapping[str, str], entity: str, *, names_partition: bool = False) -> Peek:
        """Opens an entity for browsing; `close` of what comes back is called at the end where it has one.

        Args:
            options: that reach the namespace.
            entity: what to browse.
            names_partition: of a log: whether records without key are given one that names their partition, as their route does.

        Raises:
            IsthmusError: it cannot be reached, refuses, or cannot be browsed.
        """
        ...


@runtime_checkable
class LogSystem(Protocol):
    """What a kind can tell beyond `System` whose entities are logs."""

    def uncommitted(self, options: Mapping[str, str], entity: str, group: str, peek: Peek) -> Peek:
        """The same browsing from where a group is.

        Raises:
            IsthmusError: it cannot be told.
        """
        ...

    def is_placed(self, options: Mapping[str, str], entity: str, group: str) -> bool:
        """Whether it is known of any partition where a group is; where not, `uncommitted` browses all.

        Raises:
            IsthmusError: it cannot be told.
        """
        ...


@runtime_checkable
class KnowsRemoved(Protocol):
    """A browsing from where a group is that knows what was removed there unread."""

    @property
    def removed(self) -> Mapping[int, tuple[int, int]]:
        """By partition, the first position in it that the group has not done with, and the first that exists; only where that is behind it.

        Where a log begins is asked before where the group is: what it reads meanwhile does not count.
        """
        ...


@runtime_checkable
class TellsBegins(Protocol):
    """A browsing of a log that tells where it begins."""

    def begins(self) -> Mapping[int, int]:
        """By partition, the first position that exists, or that will.

        Raises:
            IsthmusError: it cannot be told.
        """
        ...


def removed_before(begins: Mapping[int, int], starts: Mapping[int, int]) -> dict[int, tuple[int, int]]:
    """What `KnowsRemoved` tells.

    Args:
        begins: by partition, the first position that exists.
        starts: by partition, the first one that the group has not done with.
    """
    return {number: (start, begins[number]) for number, start in starts.items() if start < begins.get(number, 0)}


class CountingSystem(Protocol):
    """What a kind can tell beyond `System` whose queues let nobody look, and whose topics can be recorded (`NamespaceKind.audits_by`)."""

    def unsettled(self, options: Mapping[str, str], entity: str, group: str) -> int:
        """How many messages of a queue are ready or with a consumer, as the system counted them some seconds ago.

        Raises:
            IsthmusError: it cannot be told.
        """
        ...


def system_of(kind: str) -> System:
    """The system of a kind that is not Service Bus.

    Raises:
        KeyError: there is none.
    """
    module, _, name = SYSTEMS[kind].partition(":")
    return cast(System, getattr(importlib.import_module(module), name))
