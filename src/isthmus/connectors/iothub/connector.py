"""IoT Hub as a connector of the bridge.

What it is: the pools of sources and targets, and the capabilities of the kind. What it is not: a link.
"""

from __future__ import annotations

from collections.abc import Mapping

from isthmus.bridge.port import Capabilities, Source, SourcePool, Target, TargetPool
from isthmus.bridge.refusal import Refusal
from isthmus.connectors.eventhubs.connector import CONNECTOR as EVENT_HUBS
from isthmus.connectors.iothub.option import read_source, read_target
from isthmus.connectors.iothub.pool import DevicePool, EventsPool
from isthmus.connectors.iothub.source import IotHubSource
from isthmus.connectors.iothub.target import IotHubTarget

__all__ = ["CONNECTOR", "IotHubConnector", "IotHubSources", "IotHubTargets"]


class IotHubSources(EventsPool):
    """The sources of one process."""

    def source(
        self, key: int, options: Mapping[str, str], *, ordered: bool = True, only_present: bool = False
    ) -> Source:
        """A source that is not open yet; the order of its partitions is kept with and without `ordered`.

        Raises:
            ConfigError: an option is invalid.
        """
        return IotHubSource(self, key, read_source(options), only_present=only_present)


class IotHubTargets(DevicePool):
    """The targets of one process."""

    def target(self, key: int, options: Mapping[str, str], *, origin_identity: str = "") -> Target:
        """A target that is not open yet.

        Raises:
            ConfigError: an option is invalid.
        """
        return IotHubTarget(self, key, read_target(options), origin_identity)


class IotHubConnector:
    """The kind `iothub`."""

    kind = "iothub"
    capabilities = Capabilities(is_log=True, dispositions=frozenset(), reports_backlog=False)

    def sources(self) -> SourcePool:
        """A new pool."""
        return IotHubSources()

    def targets(self) -> TargetPool:
        """A new pool."""
        return IotHubTargets()

    def refusal_of(self, error: Exception) -> Refusal:
        """The refusal that an error means for a message."""
        return EVENT_HUBS.refusal_of(error)


CONNECTOR = IotHubConnector()
