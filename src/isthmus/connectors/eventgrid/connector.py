"""Event Grid as a connector of the bridge.

What it is: the pools of sources and targets, and the capabilities of the kind. It guarantees no order.
"""

from __future__ import annotations

from collections.abc import Mapping

from isthmus.bridge.port import Capabilities, Source, SourcePool, Target, TargetPool
from isthmus.bridge.refusal import Refusal, RefusalKind
from isthmus.connectors.end_pool import EndPool
from isthmus.connectors.eventgrid.mapping import to_messages
from isthmus.connectors.eventgrid.option import read_source, read_target
from isthmus.connectors.eventgrid.source import EventGridPuller
from isthmus.connectors.eventgrid.target import EventGridRequester
from isthmus.connectors.listen.option import ListenOptions
from isthmus.connectors.listen.source import ListenSource
from isthmus.connectors.pull.source import PullSource
from isthmus.connectors.request.target import RequestPool, RequestTarget

__all__ = ["CONNECTOR", "EventGridConnector", "EventGridSources", "EventGridTargets"]

_SETTLING = 4
_PAUSE_SECONDS = 1.0


class EventGridSources(EndPool):
    """The sources of one process."""

    def source(
        self, key: int, options: Mapping[str, str], *, ordered: bool = True, only_present: bool = False
    ) -> Source:
        """A source that is not open yet.

        Raises:
            ConfigError: an option is invalid.
        """
        read = read_source(options)
        if isinstance(read, ListenOptions):
            return ListenSource(self, key, read, read=to_messages, only_present=only_present, handshakes=True)
        return PullSource(
            self,
            key,
            EventGridPuller(read),
            parallel=_SETTLING,
            most=read.in_flight,
            pause_seconds=_PAUSE_SECONDS,
            only_present=only_present,
        )


class EventGridTargets(RequestPool):
    """The targets of one process."""

    def target(self, key: int, options: Mapping[str, str], *, origin_identity: str = "") -> Target:
        """A target that is not open yet.

        Raises:
            ConfigError: an option is invalid.
        """
        read = read_target(options)
        return RequestTarget(
            self,
            key,
            lambda: EventGridRequester(read),
            copying=read.copying,
            origin_identity=origin_identity,
            parallel=read.parallel,
            stall_seconds=read.service.timeout_seconds * 2,
        )


class EventGridConnector:
    """The kind `eventgrid`."""

    kind = "eventgrid"
    capabilities = Capabilities(
        dispositions=frozenset({"dead-letter", "abandon"}), reports_backlog=False, keeps_positions=False
    )

    def sources(self) -> SourcePool:
        """A new pool."""
        return EventGridSources()

    def targets(self) -> TargetPool:
        """A new pool."""
        return EventGridTargets()

    def refusal_of(self, error: Exception) -> Refusal:
        """The refusal that an error means for a message."""
        return Refusal(RefusalKind.UNCLEAR, "", f"{type(error).__name__}: {error}")


CONNECTOR = EventGridConnector()
