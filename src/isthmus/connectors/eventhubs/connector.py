"""Event Hubs as a connector of the bridge.

What it is: the pools of sources and targets, and the capabilities of the kind. What it is not: a link.
"""

from __future__ import annotations

from collections.abc import Mapping

from isthmus.bridge.port import Capabilities, Source, SourcePool, Target, TargetPool
from isthmus.bridge.refusal import Refusal, RefusalKind
from isthmus.connectors.eventhubs.option import read_source, read_target
from isthmus.connectors.eventhubs.pool import HubPool
from isthmus.connectors.eventhubs.source import EventHubsSource
from isthmus.connectors.eventhubs.target import EventHubsTarget
from isthmus.connectors.servicebus.refusal import refusal_of
from isthmus.errors import IsthmusError

__all__ = ["CONNECTOR", "EventHubsConnector", "EventHubsSources", "EventHubsTargets", "dispositions_of"]


class EventHubsSources(HubPool):
    """The sources of one process."""

    def source(
        self, key: int, options: Mapping[str, str], *, ordered: bool = True, only_present: bool = False
    ) -> Source:
        """A source that is not open yet; the order of its partitions is kept with and without `ordered`.

        Raises:
            ConfigError: an option is invalid.
        """
        return EventHubsSource(self, key, read_source(options), only_present=only_present)


class EventHubsTargets(HubPool):
    """The targets of one process."""

    def target(self, key: int, options: Mapping[str, str], *, origin_identity: str = "") -> Target:
        """A target that is not open yet.

        Raises:
            ConfigError: an option is invalid.
        """
        return EventHubsTarget(self, key, read_target(options), origin_identity)


class EventHubsConnector:
    """The kind `eventhubs`."""

    kind = "eventhubs"
    capabilities = Capabilities(is_log=True, dispositions=frozenset(), reports_backlog=False)

    def sources(self) -> SourcePool:
        """A new pool."""
        return EventHubsSources()

    def targets(self) -> TargetPool:
        """A new pool."""
        return EventHubsTargets()

    def refusal_of(self, error: Exception) -> Refusal:
        """The refusal that an error means for a message."""
        if isinstance(error, IsthmusError):
            return refusal_of(error)
        return Refusal(RefusalKind.UNCLEAR, "", f"{type(error).__name__}: {error}")


def dispositions_of(options: Mapping[str, str]) -> frozenset[str]:
    """The dispositions of this source besides `complete`; the kind alone has none.

    Raises:
        ConfigError: an option is invalid.
    """
    return frozenset({"dead-letter", "abandon"} if read_source(options).dead_letter_topic else {"abandon"})


CONNECTOR = EventHubsConnector()
