"""Event hubs and consumer groups of a namespace: their observation and creation.

What it is: the administration that `apply` uses. A group exists if it has checkpoints: its route would continue there. What it is not:
the decision what to create (`isthmus.topology.planning.log_planner`).

Invariants:
    I1. Existing entities are not changed; a group that has checkpoints keeps them, except those of a deleted event hub of the same name.
        A group that was created in part, because `apply` was killed, is completed.
    I2. Without the right to administer, existing entities are still reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from isthmus.connectors.checkpoint.checkpoint import Checkpoint, open_store
from isthmus.connectors.eventhubs.blocking import BlockingHubs
from isthmus.connectors.eventhubs.option import HubOptions, read_hub
from isthmus.connectors.eventhubs.partition.address import START_OFFSET
from isthmus.connectors.eventhubs.partition.opening import distinct_created_ms
from isthmus.errors import ConfigError, EntityNotFoundError, Fault
from isthmus.topology.model import NamespaceRef
from isthmus.topology.planning.change import Change
from isthmus.topology.state import GroupState, LogState, NamespaceState, WantedState

__all__ = ["START_OFFSET", "EventHubsAdministration", "begin_group"]


class EventHubsAdministration:
    """The event hubs of one namespace.

    Args:
        options: the options that reach it.
        hubs: the connection; None: made from the options.

    Raises:
        SecretError: a reference cannot be resolved.
    """

    def __init__(self, options: HubOptions, hubs: BlockingHubs | None = None) -> None:
        self._options = options
        self._hubs = hubs or BlockingHubs(options)

    @classmethod
    def open(cls, namespace: NamespaceRef) -> Self:
        """Opens an administration of a namespace.

        Raises:
            ConfigError: a setting is invalid.
            SecretError: a reference cannot be resolved.
        """
        return cls(read_hub(namespace.options()))

    def close(self) -> None:
        """Closes the connection."""
        self._hubs.close()

    def observe(self, alias: str, wanted: Sequence[WantedState]) -> NamespaceState:
        """The requested event hubs that exist, and their groups.

        Raises:
            ConfigError: groups are requested, and the namespace has no store of checkpoints.
            IsthmusError: no answer, or a refusal.
        """
        found: list[LogState] = []
        for log in wanted:
            if not isinstance(log, LogState):
                continue
            try:
                views = self._hubs.views(log.name)
            except EntityNotFoundError:
                continue
            groups = tuple(GroupState(name=each.name) for each in log.groups if self._has_begun(log.name, each.name))
            found.append(LogState(name=log.name, partitions=len(views), groups=groups))
        identity = self._hubs.identity()
        return NamespaceState(alias=alias, endpoint=identity, identity=identity, logs=tuple(found))

    def _has_begun(self, hub: str, group: str) -> bool:
        _check_store(self._options)
        store = open_store(self._options)
        try:
            kept = store.load(self._hubs.group(hub, group))
            # Partition 0 is written last; the vendor's SDKs write those that they have read from.
            is_part = 0 not in kept and all(each.created_ms for each in kept.values())
            return not is_part
        finally:
            store.close()

    def make(self, change: Change) -> None:
        """Makes one change.

        Raises:
            IsthmusError: no answer, or a refusal.
        """
        match change:
            case Change(kind="log", after=LogState() as log):
                self._hubs.create_hub(log.name, log.initial_partitions or 1)
            case Change(kind="group", after=GroupState() as group):
                self._hubs.create_group(change.topic, group.name)
                begin_group(self._options, self._hubs, change.topic, group.name, from_end=group.start == "now")

    def size(self, entity: str) -> None:
        """None: a log has no maximum size; its retention removes old events."""
        return


def begin_group(options: HubOptions, hubs: BlockingHubs, hub: str, group: str, *, from_end: bool) -> None:
    """Writes a checkpoint of a group for every partition: its end, or the position before its first event. An existing checkpoint of a
    deleted event hub of the same name is replaced, or as many events would be skipped. One of this event hub is kept, for the same reason.

    Raises:
        ConfigError: there is no store of checkpoints.
        IsthmusError: no answer, or a refusal.
    """
    _check_store(options)
    query = hubs.query(hub)
    views = dict(sorted(query.views.items(), reverse=True))  # the order of writing: a partial write lacks partition 0
    checkpoints: dict[int, Checkpoint] = {}
    for number, view in views.items():
        is_unused = view.last < view.begin and view.last < 0
        if from_end and not is_unused:
            checkpoints[number] = Checkpoint(view.last, view.last_offset or START_OFFSET)
        else:
            checkpoints[number] = Checkpoint(view.begin - 1, START_OFFSET)
    key = hubs.group(hub, group)._replace(created_ms=distinct_created_ms(query.created_ms, views.values()))
    store = open_store(options)
    try:
        existing = store.load(key)
        for number, view in views.items():
            if number in existing and key.created_ms and existing[number].created_ms == key.created_ms:
                del checkpoints[number]  # of this event hub: later events were not read
            elif number in existing and (existing[number].sequence > view.last or not from_end):
                checkpoints[number] = checkpoints[number]._replace(begins_again=True)
        store.write(key, checkpoints)
    finally:
        store.close()


def _check_store(options: HubOptions) -> None:
    if not options.checkpoints and not options.checkpoint_container:
        raise ConfigError(
            [
                Fault(
                    "a namespace of event hubs that is read needs a store of checkpoints",
                    "write checkpoints: FOLDER, or checkpoint_container: https://ACCOUNT.blob.core.windows.net/CONTAINER",
                )
            ]
        )
