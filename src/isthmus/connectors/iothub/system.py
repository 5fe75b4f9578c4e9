"""IoT Hub for the driver (`isthmus.connectors.system`).

What it is: the positions of groups at the built-in endpoint, and browsing there. Messages to devices cannot be browsed: a hub does not
expose the queue of a device. What it is not: the creation of consumer groups, which the portal or Azure Resource Manager does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from isthmus.connectors.checkpoint.checkpoint import GroupKey, open_store
from isthmus.connectors.eventhubs.administration import EventHubsAdministration
from isthmus.connectors.eventhubs.blocking import BlockingHubs
from isthmus.connectors.eventhubs.mapping import EventReader
from isthmus.connectors.eventhubs.option import HubOptions
from isthmus.connectors.eventhubs.partition.address import Begin
from isthmus.connectors.eventhubs.partition.hub_query import HubQuery, PartitionView
from isthmus.connectors.eventhubs.partition.link import PartitionLink
from isthmus.connectors.eventhubs.peek import HubPeek, HubPeekFrom
from isthmus.connectors.iothub.device import DEVICE_BOUND
from isthmus.connectors.iothub.endpoint import OPEN_SECONDS, events_endpoint, hub_endpoint
from isthmus.connectors.iothub.option import read_hub
from isthmus.connectors.iothub.source import SHOWN
from isthmus.connectors.system import Peek, Waits, removed_before
from isthmus.errors import EntityNotFoundError, IsthmusError, NotAllowedError
from isthmus.transport import Client, Sender

if TYPE_CHECKING:
    from isthmus.connectors.administration import Administration
    from isthmus.topology.model import NamespaceRef

__all__ = ["SYSTEM", "IotHubSystem", "IotHubs"]

EVENTS, DEVICES = "events", "devicebound"


class IotHubs(BlockingHubs):
    """The built-in endpoint of an IoT hub; the name `events` always means its event hub.

    Args:
        options: the options that reach the IoT hub.

    Raises:
        IsthmusError: it cannot be reached, or refuses.
    """

    def __init__(self, options: HubOptions) -> None:
        endpoint, self.hub = events_endpoint(options)
        super().__init__(options, endpoint)

    def group(self, hub: str, group: str) -> GroupKey:
        """The owner of a group's checkpoints."""
        return super().group(self.hub, group)

    def views(self, hub: str) -> dict[int, PartitionView]:
        """The partitions; the written entity, `devicebound`, has one without messages."""
        return {0: PartitionView(0, -1, "", is_empty=True)} if hub == DEVICES else super().views(hub)

    def query(self, hub: str) -> HubQuery:
        """The endpoint's description of the event hub."""
        if hub != EVENTS:
            raise EntityNotFoundError(hub)
        return super().query(self.hub)

    def reader(self, hub: str, group: str, partition: int, begin: Begin) -> PartitionLink:
        """A link that reads a partition."""
        return super().reader(self.hub, group, partition, begin)

    def create_hub(self, hub: str, partitions: int) -> None:
        """Refuses: an IoT hub has no entities that could be created here."""
        raise NotAllowedError(f"an IoT hub has '{EVENTS}' to read and '{DEVICES}' to write, and no '{hub}'")

    def create_group(self, hub: str, group: str) -> None:
        """Checks that the consumer group exists."""
        try:
            self.reader(hub, group, min(self.views(hub)), Begin()).close()
        except EntityNotFoundError:
            raise NotAllowedError(
                f"the IoT hub has no consumer group '{group}', and this protocol cannot create one: create it in the portal (Built-in "
                f"endpoints), or with `az iot hub consumer-group create --name {group}`; or write group: $Default"
            ) from None


class IotHubSystem:
    """The kind `iothub`."""

    def administration(self, namespace: NamespaceRef) -> Administration:
        """The administration of an IoT hub: its entities, and the checkpoints of groups."""
        options = read_hub(namespace.options())
        return EventHubsAdministration(options, IotHubs(options))

    def identity(self, options: Mapping[str, str]) -> str:
        """The identity of the built-in endpoint's namespace."""
        with IotHubs(read_hub(options)) as hubs:
            return hubs.identity()

    def addresses(self, options: Mapping[str, str]) -> Sequence[str]:
        """Its host and port, where the secret can be resolved here."""
        try:
            endpoint = hub_endpoint(read_hub(options))
        except IsthmusError:
            return ()
        return [f"{endpoint.host}:{endpoint.port}", endpoint.host]

    def check(self, options: Mapping[str, str], entity: str, *, reads: bool) -> None:
        """Opens a link that reads a partition, or one that sends to devices."""
        read = read_hub(options)
        if reads:
            with IotHubs(read) as hubs:
                hubs.reader(entity, "$Default", min(hubs.views(entity)), Begin()).close()
            return
        with Client(hub_endpoint(read), name="isthmus-look").open(OPEN_SECONDS) as client:
            client.authorize(DEVICE_BOUND, OPEN_SECONDS)
            sender = Sender(client, DEVICE_BOUND)
            client.wait_until(
                lambda: sender.attached or sender.error is not None, OPEN_SECONDS, f"'{DEVICE_BOUND}': no answer"
            )
            if sender.error is not None:
                raise sender.error

    def waiting(self, options: Mapping[str, str], entity: str, group: str) -> Waits:
        """The messages of devices after a group's checkpoints."""
        found = 0
        starts = self._starts(options, entity, group)
        with IotHubs(read_hub(options)) as hubs:
            for number, view in hubs.views(entity).items():
                if not view.is_empty:
                    found += max(0, view.last + 1 - max(view.begin, starts.get(number, view.begin)))
        return Waits(found, are_ready=True)

    def peek(self, options: Mapping[str, str], entity: str, *, names_partition: bool = False) -> Peek:
        """Browses the messages of devices."""
        read = read_hub(options)
        hubs = IotHubs(read)
        reader = EventReader(hubs.hub, gives_ids=True, names_partition=names_partition, shown=SHOWN)
        return HubPeek(read, entity, hubs=hubs, reader=reader)

    def uncommitted(self, options: Mapping[str, str], entity: str, group: str, peek: Peek) -> Peek:
        """The messages of devices after a group's checkpoints."""
        assert isinstance(peek, HubPeek)
        begins = peek.begins()
        starts = self._starts(options, entity, group)
        return HubPeekFrom(peek, starts, removed_before(begins, starts))

    def is_placed(self, options: Mapping[str, str], entity: str, group: str) -> bool:
        """Whether the group has a checkpoint with a sequence number."""
        return bool(self._starts(options, entity, group))

    def _starts(self, options: Mapping[str, str], entity: str, group: str) -> dict[int, int]:
        read = read_hub(options)
        with IotHubs(read) as hubs:
            key = hubs.group(entity, group)
        store = open_store(read)
        try:
            return {number: each.sequence + 1 for number, each in store.load(key).items() if each.is_numbered}
        finally:
            store.close()


SYSTEM = IotHubSystem()
