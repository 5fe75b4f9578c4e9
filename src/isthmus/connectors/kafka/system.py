"""Kafka for the driver (`isthmus.connectors.system`).

What it is: administration, browsing, and a group's waiting records. What it is not: the calls to a cluster (`administration`, `group`, `peek`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from isthmus.connectors.system import Peek, Waits, removed_before
from isthmus.extra import require

if TYPE_CHECKING:
    from isthmus.connectors.administration import Administration
    from isthmus.topology.model import NamespaceRef

__all__ = ["SYSTEM", "KafkaSystem"]

_WHAT = "a Kafka cluster"


class KafkaSystem:
    """The kind `kafka`."""

    def administration(self, namespace: NamespaceRef) -> Administration:
        """The topics and groups of a cluster."""
        require("kafka", _WHAT)
        from isthmus.connectors.kafka.log_administration import LogAdministration

        return LogAdministration.open(namespace)

    def identity(self, options: Mapping[str, str]) -> str:
        """The cluster's id."""
        require("kafka", _WHAT)
        from isthmus.connectors.kafka.administration import KafkaAdministration

        return KafkaAdministration(options).cluster_id()

    def addresses(self, options: Mapping[str, str]) -> Sequence[str]:
        """The brokers in the namespace's settings."""
        servers = options.get("bootstrap_servers", "")
        return [each for each in (servers, *servers.split(",")) if each]

    def check(self, options: Mapping[str, str], entity: str, *, reads: bool) -> None:
        """Opens a topic for browsing."""
        require("kafka", _WHAT)
        from isthmus.connectors.kafka.peek import TopicPeek

        TopicPeek(options, entity).close()

    def waiting(self, options: Mapping[str, str], entity: str, group: str) -> Waits:
        """The records that wait for a group."""
        require("kafka", _WHAT)
        from isthmus.connectors.kafka.group import GroupOffsets

        return Waits(*GroupOffsets(options).waiting(group, entity))

    def peek(self, options: Mapping[str, str], entity: str, *, names_partition: bool = False) -> Peek:
        """Browses a topic."""
        require("kafka", _WHAT)
        from isthmus.connectors.kafka.peek import TopicPeek

        return TopicPeek(options, entity, names_partition=names_partition)

    def uncommitted(self, options: Mapping[str, str], entity: str, group: str, peek: Peek) -> Peek:
        """The records that a group has not committed."""
        from isthmus.connectors.kafka.group import GroupOffsets
        from isthmus.connectors.kafka.peek import PeekFrom, TopicPeek

        assert isinstance(peek, TopicPeek)
        begins = peek.begins()
        starts = GroupOffsets(options).committed(group, entity)
        return PeekFrom(peek, starts, removed_before(begins, starts))

    def is_placed(self, options: Mapping[str, str], entity: str, group: str) -> bool:
        """Whether the group has committed an offset."""
        from isthmus.connectors.kafka.group import GroupOffsets

        return bool(GroupOffsets(options).committed(group, entity))


SYSTEM = KafkaSystem()
