"""The topics and consumer groups of a cluster, for `plan` and `apply`.

What it is: `isthmus.connectors.administration.Administration` for Kafka. Calls block. What it is not: the calls to the cluster
(`administration`, `group`).

Invariants:
    I1. Nothing connects before the first call.
    I2. The offsets of a group that has some are never changed.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Self

from isthmus.connectors.kafka.administration import KafkaAdministration
from isthmus.connectors.kafka.group import GroupOffsets
from isthmus.errors import EntityNotFoundError
from isthmus.topology.model import NamespaceRef
from isthmus.topology.planning.change import Change
from isthmus.topology.state import GroupState, LogState, NamespaceState, WantedState

__all__ = ["LogAdministration"]

# A new topic is not known to every broker at once.
_KNOWN_SECONDS = 10.0


class LogAdministration:
    """The topics of one cluster.

    Args:
        topics: the topics of the cluster.
        groups: the groups of the cluster.
    """

    def __init__(self, topics: KafkaAdministration, groups: GroupOffsets) -> None:
        self._topics = topics
        self._groups = groups

    @classmethod
    def open(cls, namespace: NamespaceRef) -> Self:
        """Opens an administration of a namespace.

        Raises:
            ConfigError: a setting is invalid.
        """
        options = namespace.options()
        return cls(KafkaAdministration(options), GroupOffsets(options))

    def close(self) -> None:
        """Does nothing: no connection is kept open."""

    def observe(self, alias: str, wanted: Sequence[WantedState]) -> NamespaceState:
        """The requested topics that exist, and their groups."""
        found: list[LogState] = []
        for log in wanted:
            view = self._topics.describe(log.name) if isinstance(log, LogState) else None
            if view is None or not isinstance(log, LogState):
                continue
            groups = tuple(
                GroupState(name=each.name) for each in log.groups if self._groups.committed(each.name, log.name)
            )
            found.append(LogState(name=log.name, partitions=view.partitions, groups=groups))
        return NamespaceState(alias=alias, endpoint=self._topics.cluster_id(), logs=tuple(found))

    def make(self, change: Change) -> None:
        """Makes one change."""
        match change:
            case Change(kind="log", after=LogState() as log):
                replication = log.initial_replication or -1
                self._topics.create(log.name, log.initial_partitions or 1, replication=replication)
            case Change(kind="group", after=GroupState() as group):
                self._begin(group, change.topic)

    def _begin(self, group: GroupState, topic: str) -> None:
        deadline = time.monotonic() + _KNOWN_SECONDS
        while True:
            try:
                self._groups.begin(group.name, topic, from_end=group.start == "now")
                return
            except EntityNotFoundError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    def size(self, topic: str) -> None:
        """None: a log has no maximum size; its retention removes old records."""
        return
