"""RabbitMQ as a connector of the bridge.

What it is: the pools of sources and targets, and the capabilities of the kind. What it is not: a data source of Spark.
"""

from __future__ import annotations

from collections.abc import Mapping

from isthmus.bridge.port import Capabilities, Source, SourcePool, Target, TargetPool
from isthmus.bridge.refusal import Refusal
from isthmus.connectors.rabbitmq.option import read_source, read_target
from isthmus.connectors.rabbitmq.port.pool import BrokerPool
from isthmus.connectors.rabbitmq.port.source import RabbitSource
from isthmus.connectors.rabbitmq.port.target import RabbitTarget
from isthmus.connectors.rabbitmq.protocol.error import refusal_of

__all__ = ["CONNECTOR", "RabbitConnector"]


class RabbitSources(BrokerPool):
    """The sources of one process."""

    def source(
        self, key: int, options: Mapping[str, str], *, ordered: bool = True, only_present: bool = False
    ) -> Source:
        """A source that is not open yet.

        Raises:
            ConfigError: an option is invalid.
        """
        return RabbitSource(self, key, read_source(options), ordered=ordered, only_present=only_present)


class RabbitTargets(BrokerPool):
    """The targets of one process."""

    def target(self, key: int, options: Mapping[str, str], *, origin_identity: str = "") -> Target:
        """A target that is not open yet.

        Raises:
            ConfigError: an option is invalid.
        """
        return RabbitTarget(self, key, read_target(options), origin_identity)


class RabbitConnector:
    """The kind `rabbitmq`."""

    kind = "rabbitmq"
    capabilities = Capabilities(dispositions=frozenset({"dead-letter", "abandon"}), keeps_positions=False)

    def sources(self) -> SourcePool:
        """A new pool."""
        return RabbitSources()

    def targets(self) -> TargetPool:
        """A new pool."""
        return RabbitTargets()

    def refusal_of(self, error: Exception) -> Refusal:
        """The refusal that an error means for a message."""
        return refusal_of(error)


CONNECTOR = RabbitConnector()
