"""AMQP 1.0 brokers as a connector of the bridge.

What it is: the pools of sources and targets, and the capabilities of the kind. What it is not: Service Bus, whose connector supports its
locks, tokens and sequence numbers.
"""

from __future__ import annotations

from collections.abc import Mapping

from isthmus.bridge.port import Capabilities, Source, SourcePool, Target, TargetPool
from isthmus.bridge.refusal import Refusal, RefusalKind
from isthmus.connectors.amqp.container import Containers
from isthmus.connectors.amqp.option import read_source, read_target
from isthmus.connectors.amqp.remote import remote_of
from isthmus.connectors.amqp.source import AmqpSource
from isthmus.connectors.amqp.target import AmqpTarget
from isthmus.connectors.servicebus.port.pool import ConnectionPool
from isthmus.connectors.servicebus.refusal import refusal_of
from isthmus.errors import IsthmusError

__all__ = ["CONNECTOR", "AmqpConnector", "AmqpSources", "AmqpTargets"]


class AmqpSources(ConnectionPool):
    """The sources of one process."""

    def __init__(self) -> None:
        super().__init__()
        self._containers = Containers()

    def source(
        self, key: int, options: Mapping[str, str], *, ordered: bool = True, only_present: bool = False
    ) -> Source:
        """A source that is not open yet; without `ordered` the broker's order is kept as long as the connection lasts.

        Raises:
            ConfigError: an option is invalid.
        """
        read = read_source(options)
        remote = remote_of(read, self._containers if ordered else None)
        return AmqpSource(self, key, read, remote, only_present=only_present)


class AmqpTargets(ConnectionPool):
    """The targets of one process."""

    def target(self, key: int, options: Mapping[str, str], *, origin_identity: str = "") -> Target:
        """A target that is not open yet.

        Raises:
            ConfigError: an option is invalid.
        """
        return AmqpTarget(self, key, read_target(options), origin_identity)


class AmqpConnector:
    """The kind `amqp`."""

    kind = "amqp"
    capabilities = Capabilities(
        dispositions=frozenset({"dead-letter", "abandon"}), reports_backlog=False, keeps_positions=False
    )

    def sources(self) -> SourcePool:
        """A new pool."""
        return AmqpSources()

    def targets(self) -> TargetPool:
        """A new pool."""
        return AmqpTargets()

    def refusal_of(self, error: Exception) -> Refusal:
        """The refusal that an error means for a message."""
        if isinstance(error, IsthmusError):
            return refusal_of(error)
        return Refusal(RefusalKind.UNCLEAR, "", f"{type(error).__name__}: {error}")


CONNECTOR = AmqpConnector()
