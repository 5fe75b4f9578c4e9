"""Service Bus as a connector of the bridge.

What it is: the pools of sources and targets, and the capabilities of the kind. What it is not: the Spark data source of the same name.
"""

from __future__ import annotations

from collections.abc import Mapping

from isthmus.bridge.port import Capabilities, Source, SourcePool, Target, TargetPool
from isthmus.bridge.refusal import Refusal, RefusalKind
from isthmus.connectors.servicebus.port.option import read_source, read_target
from isthmus.connectors.servicebus.port.pool import ConnectionPool
from isthmus.connectors.servicebus.port.session.source import SessionSource
from isthmus.connectors.servicebus.port.source import ServiceBusSource
from isthmus.connectors.servicebus.port.target import ServiceBusTarget
from isthmus.connectors.servicebus.refusal import refusal_of
from isthmus.errors import IsthmusError

__all__ = ["CONNECTOR", "ServiceBusConnector", "ServiceBusSources", "ServiceBusTargets"]


class ServiceBusSources(ConnectionPool):
    """The sources of one process."""

    def source(
        self, key: int, options: Mapping[str, str], *, ordered: bool = True, only_present: bool = False
    ) -> Source:
        """A source that is not open yet.

        Raises:
            ConfigError: an option is invalid.
        """
        read = read_source(options)
        if read.sessions:
            return SessionSource(self, key, read, only_present=only_present)
        return ServiceBusSource(self, key, read, ordered=ordered, only_present=only_present)


class ServiceBusTargets(ConnectionPool):
    """The targets of one process."""

    def target(self, key: int, options: Mapping[str, str], *, origin_identity: str = "") -> Target:
        """A target that is not open yet.

        Raises:
            ConfigError: an option is invalid.
        """
        return ServiceBusTarget(self, key, read_target(options), origin_identity)


class ServiceBusConnector:
    """The kind `servicebus`."""

    kind = "servicebus"
    capabilities = Capabilities()

    def sources(self) -> SourcePool:
        """A new pool."""
        return ServiceBusSources()

    def targets(self) -> TargetPool:
        """A new pool."""
        return ServiceBusTargets()

    def refusal_of(self, error: Exception) -> Refusal:
        """The refusal that an error means for a message."""
        if isinstance(error, IsthmusError):
            return refusal_of(error)
        return Refusal(RefusalKind.UNCLEAR, "", f"{type(error).__name__}: {error}")


CONNECTOR = ServiceBusConnector()
