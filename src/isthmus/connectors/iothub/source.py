"""The device-to-cloud messages of an IoT hub as a source on the port.

What it is: an `EventHubsSource` at the endpoint to which the hub redirects. The hub's data about a device, and its enrichments (`iothub-*`
annotations), become application properties, too, which every target keeps. What it is not: the redirect (`endpoint`).
Specification: Microsoft Learn, "Create and read IoT Hub messages" and "Message enrichments for device-to-cloud IoT Hub messages".
"""

from __future__ import annotations

from isthmus.connectors.eventhubs.option import SourceOptions
from isthmus.connectors.eventhubs.reader_choice import reader_of
from isthmus.connectors.eventhubs.source import EventHubsSource
from isthmus.connectors.iothub.pool import EventsClient, EventsPool
from isthmus.transport import Client

__all__ = ["SHOWN", "IotHubSource"]

SHOWN = ("iothub-", "dt-dataschema", "dt-subject")
"""Name prefixes of annotations that become application properties."""


class IotHubSource(EventHubsSource):
    """One route's source; arguments are those of `EventHubsSource`."""

    def __init__(self, pool: EventsPool, key: int, options: SourceOptions, *, only_present: bool) -> None:
        self._events = reader_of(options, SHOWN)
        super().__init__(pool, key, options, only_present=only_present, reader=self._events)

    def on_connected(self, client: Client) -> None:
        """The connection is open: the name of the event hub is known."""
        if isinstance(client, EventsClient):
            self.path = self._events.hub = client.hub
        super().on_connected(client)
