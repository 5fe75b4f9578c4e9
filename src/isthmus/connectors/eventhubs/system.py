"""Event Hubs for the driver (`isthmus.connectors.system`).

What it is: administration, browsing, and the events that wait for a group. What it is not: the calls to a namespace (`blocking`, `peek`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from isthmus.connectors.checkpoint.checkpoint import open_store
from isthmus.connectors.eventhubs.administration import EventHubsAdministration
from isthmus.connectors.eventhubs.blocking import QUERY_SECONDS, BlockingHubs
from isthmus.connectors.eventhubs.option import read_hub
from isthmus.connectors.eventhubs.partition.address import Begin
from isthmus.connectors.eventhubs.peek import HubPeek, HubPeekFrom
from isthmus.connectors.servicebus.connect import endpoint_of
from isthmus.connectors.system import Peek, Waits, removed_before
from isthmus.errors import IsthmusError
from isthmus.transport import Sender

if TYPE_CHECKING:
    from isthmus.connectors.administration import Administration
    from isthmus.topology.model import NamespaceRef

__all__ = ["SYSTEM", "EventHubsSystem"]


class EventHubsSystem:
    """The kind `eventhubs`."""

    def administration(self, namespace: NamespaceRef) -> Administration:
        """The event hubs and groups of a namespace."""
        return EventHubsAdministration.open(namespace)

    def identity(self, options: Mapping[str, str]) -> str:
        """The namespace's identity."""
        with BlockingHubs(read_hub(options)) as hubs:
            return hubs.identity()

    def addresses(self, options: Mapping[str, str]) -> Sequence[str]:
        """Its host and port, where the secret can be resolved here."""
        try:
            endpoint = endpoint_of(read_hub(options).servicebus_options)
        except IsthmusError:
            return ()
        return [f"{endpoint.host}:{endpoint.port}", endpoint.authority or endpoint.host]

    def check(self, options: Mapping[str, str], entity: str, *, reads: bool) -> None:
        """Opens a link that reads a partition, or one that sends."""
        with BlockingHubs(read_hub(options)) as hubs:
            partitions = hubs.views(entity)
            if reads:
                hubs.reader(entity, "$Default", min(partitions), Begin()).close()
                return
            sender = Sender(hubs.client, entity)
            hubs.client.wait_until(
                lambda: sender.attached or sender.error is not None, QUERY_SECONDS, f"'{entity}': no answer to attach"
            )
            if sender.error is not None:
                raise sender.error

    def waiting(self, options: Mapping[str, str], entity: str, group: str) -> Waits:
        """The events after a group's checkpoints."""
        starts = self._starts(options, entity, group)
        found = 0
        with BlockingHubs(read_hub(options)) as hubs:
            for number, view in hubs.views(entity).items():
                if not view.is_empty:
                    found += max(0, view.last + 1 - max(view.begin, starts.get(number, view.begin)))
        return Waits(found, are_ready=True)

    def peek(self, options: Mapping[str, str], entity: str, *, names_partition: bool = False) -> Peek:
        """Browses an event hub."""
        return HubPeek(read_hub(options), entity, names_partition=names_partition)

    def uncommitted(self, options: Mapping[str, str], entity: str, group: str, peek: Peek) -> Peek:
        """The events after a group's checkpoints."""
        assert isinstance(peek, HubPeek)
        begins = peek.begins()
        starts = self._starts(options, entity, group)
        return HubPeekFrom(peek, starts, removed_before(begins, starts))

    def is_placed(self, options: Mapping[str, str], entity: str, group: str) -> bool:
        """Whether the group has a checkpoint."""
        return bool(self._starts(options, entity, group))

    def _starts(self, options: Mapping[str, str], entity: str, group: str) -> dict[int, int]:
        """By partition, the first unsettled sequence number."""
        read = read_hub(options)
        with BlockingHubs(read) as hubs:
            key = hubs.group(entity, group)
        store = open_store(read)
        try:
            return {number: each.sequence + 1 for number, each in store.load(key).items() if each.is_numbered}
        finally:
            store.close()


SYSTEM = EventHubsSystem()
