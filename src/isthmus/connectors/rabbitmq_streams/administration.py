"""Streams of a virtual host, and the groups of routes: their observation and creation.

What it is: the administration that `apply` uses. A group exists if it has a checkpoint. What it is not: the decision what to create
(`isthmus.topology.planning.log_planner`).

Invariants:
    I1. Existing entities are not changed; a group that has a checkpoint keeps it, except one of a deleted stream of the same name.
    I2. Without `management` no stream is created, and missing ones are reported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self

from isthmus.connectors.administration import AdministrationError, NamespaceUnreachableError
from isthmus.connectors.checkpoint.checkpoint import Checkpoint
from isthmus.connectors.checkpoint.folder_store import FolderStore
from isthmus.connectors.rabbitmq.administration import RabbitAdministration
from isthmus.connectors.rabbitmq.option import read_broker
from isthmus.connectors.rabbitmq.port.probe import Probe
from isthmus.connectors.rabbitmq_streams.look import broker_options, last_of
from isthmus.connectors.rabbitmq_streams.option import read_namespace
from isthmus.errors import EntityNotFoundError, IsthmusError
from isthmus.topology.model import NamespaceRef
from isthmus.topology.planning.change import Change
from isthmus.topology.state import GroupState, LogState, NamespaceState, WantedState

__all__ = ["StreamAdministration"]


class StreamAdministration:
    """The streams of one virtual host.

    Args:
        options: the namespace's options.

    Raises:
        ConfigError: a setting is invalid.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = dict(options)
        self._namespace = read_namespace(options)
        self._store = FolderStore(self._namespace.checkpoints)
        self._cluster = ""

    @classmethod
    def open(cls, namespace: NamespaceRef) -> Self:
        """Opens an administration of a namespace.

        Raises:
            ConfigError: a setting is invalid.
        """
        return cls(namespace.options())

    def close(self) -> None:
        """Does nothing: no connection is kept open."""

    def observe(self, alias: str, wanted: Sequence[WantedState]) -> NamespaceState:
        """The requested streams that exist, and their groups.

        Raises:
            AdministrationError: no answer, or a refusal.
        """
        found: list[LogState] = []
        for log in wanted:
            if isinstance(log, LogState) and self._exists(log.name):
                groups = tuple(
                    GroupState(name=each.name)
                    for each in log.groups
                    if self._store.load(self._namespace.key(self._cluster, log.name, each.name))
                )
                found.append(LogState(name=log.name, partitions=1, groups=groups))
        endpoint = f"{self._namespace.host}/{self._namespace.virtual_host}"
        return NamespaceState(alias=alias, endpoint=endpoint, logs=tuple(found))

    def _exists(self, stream: str) -> bool:
        try:
            with Probe(self._namespace) as probe:
                self._cluster = probe.cluster_name
                probe.queue(stream)
        except EntityNotFoundError:
            return False
        except IsthmusError as error:
            kind = NamespaceUnreachableError if error.retryable else AdministrationError
            raise kind(self._namespace.host, str(error)) from None
        return True

    def make(self, change: Change) -> None:
        """Creates a stream, or the checkpoint of a group.

        Raises:
            IsthmusError: no answer, or a refusal.
        """
        match change:
            case Change(kind="log", after=LogState() as log):
                if not self._namespace.management:
                    hint = "create it, or write management: URL for the namespace"
                    raise AdministrationError(self._namespace.host, f"stream '{log.name}' does not exist", hint)
                RabbitAdministration(read_broker(broker_options(self._options))).make_stream(log.name)
            case Change(kind="group", after=GroupState() as group):
                checkpoint = Checkpoint(-1)
                if group.start == "now":
                    checkpoint = Checkpoint(*last_of(self._options, change.topic))
                if not self._exists(change.topic):
                    raise EntityNotFoundError(change.topic)
                # An existing one belongs to a deleted stream of this name: an existing group is never created.
                begin = checkpoint._replace(begins_again=True)
                self._store.write(self._namespace.key(self._cluster, change.topic, group.name), {0: begin})

    def size(self, entity: str) -> None:
        """None: a log has no maximum size; its retention removes old messages."""
        return
