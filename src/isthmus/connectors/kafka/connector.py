"""Kafka as a connector of the bridge.

What it is: the pools of sources and targets, and the capabilities of the kind. What it is not: a data source of Spark.
"""

from __future__ import annotations

from collections.abc import Mapping

from isthmus.bridge.port import Capabilities, Source, SourcePool, Target, TargetPool
from isthmus.bridge.refusal import Refusal, RefusalKind
from isthmus.connectors.end_pool import EndPool
from isthmus.connectors.kafka.option import read_source, read_target
from isthmus.extra import require

__all__ = ["CONNECTOR", "KafkaConnector", "KafkaSources", "KafkaTargets", "dispositions_of"]


class KafkaSources(EndPool):
    """The sources of one process."""

    def source(
        self, key: int, options: Mapping[str, str], *, ordered: bool = True, only_present: bool = False
    ) -> Source:
        """A source that is not open yet; the order of its partitions is kept with and without `ordered`.

        Raises:
            ConfigError: an option is invalid.
        """
        from isthmus.connectors.kafka.source import KafkaSource

        return KafkaSource(self, key, read_source(options), only_present=only_present)


class KafkaTargets(EndPool):
    """The targets of one process."""

    def target(self, key: int, options: Mapping[str, str], *, origin_identity: str = "") -> Target:
        """A target that is not open yet.

        Raises:
            ConfigError: an option is invalid.
        """
        from isthmus.connectors.kafka.target import KafkaTarget

        return KafkaTarget(self, key, read_target(options), origin_identity)


class KafkaConnector:
    """The kind `kafka`."""

    kind = "kafka"
    capabilities = Capabilities(is_log=True, dispositions=frozenset(), reports_backlog=False)

    def sources(self) -> SourcePool:
        """A new pool.

        Raises:
            MissingExtraError: confluent-kafka is not installed.
        """
        require("kafka", "a Kafka source")
        return KafkaSources()

    def targets(self) -> TargetPool:
        """A new pool.

        Raises:
            MissingExtraError: confluent-kafka is not installed.
        """
        require("kafka", "a Kafka target")
        return KafkaTargets()

    def refusal_of(self, error: Exception) -> Refusal:
        """The refusal that an error means for a message."""
        return Refusal(RefusalKind.UNCLEAR, "", f"{type(error).__name__}: {error}")


def dispositions_of(options: Mapping[str, str]) -> frozenset[str]:
    """The dispositions of this source besides `complete`; the kind alone has none.

    Raises:
        ConfigError: an option is invalid.
    """
    return frozenset({"dead-letter", "abandon"} if read_source(options).dead_letter_topic else {"abandon"})


CONNECTOR = KafkaConnector()
