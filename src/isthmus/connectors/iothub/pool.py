"""The connections of one process to IoT hubs: to the hub itself for sending, to its built-in endpoint for reading.

What it is: how the pools of Event Hubs connect here. What it is not: sources or targets.
"""

from __future__ import annotations

import os

from isthmus.connectors.eventhubs.option import HubOptions
from isthmus.connectors.eventhubs.pool import HubPool
from isthmus.connectors.iothub.endpoint import OPEN_SECONDS, events_endpoint, hub_endpoint
from isthmus.connectors.servicebus.option import SinkOptions
from isthmus.connectors.servicebus.option import SourceOptions as NamespaceOptions
from isthmus.transport import Client, Endpoint

__all__ = ["DevicePool", "EventsClient", "EventsPool"]


class EventsClient(Client):
    """A connection to the Event Hubs-compatible endpoint of an IoT hub; `hub`: name of the event hub there."""

    def __init__(self, endpoint: Endpoint, hub: str, *, name: str) -> None:
        super().__init__(endpoint, name=name, shared=True)
        self.hub = hub


class EventsPool(HubPool):
    """Connections for reading."""

    def dial(self, options: NamespaceOptions | SinkOptions) -> Client:
        """Opens a client to the endpoint of the hub's redirect; blocks."""
        found = events_endpoint(_hub_options(options))
        return EventsClient(found.endpoint, found.hub, name=f"isthmus-bridge-{os.getpid()}").open(OPEN_SECONDS)


class DevicePool(HubPool):
    """Connections for sending."""

    def dial(self, options: NamespaceOptions | SinkOptions) -> Client:
        """Opens a client; blocks."""
        return Client(hub_endpoint(_hub_options(options)), name=f"isthmus-bridge-{os.getpid()}", shared=True).open(
            OPEN_SECONDS
        )


def _hub_options(options: NamespaceOptions | SinkOptions) -> HubOptions:
    return HubOptions(connection=options.connection, ca_file=options.ca_file, transport_type=options.transport_type)
