"""HTTP as a connector of the bridge.

What it is: the pools of sources (listeners) and targets, and the capabilities of the kind.
"""

from __future__ import annotations

from collections.abc import Mapping

from isthmus.bridge.port import Capabilities, Source, SourcePool, Target, TargetPool
from isthmus.bridge.refusal import Refusal, RefusalKind
from isthmus.connectors.end_pool import EndPool
from isthmus.connectors.http.mapping import to_messages
from isthmus.connectors.http.option import read_source, read_target
from isthmus.connectors.http.target import HttpRequester
from isthmus.connectors.listen.source import ListenSource
from isthmus.connectors.request.target import RequestPool, RequestTarget

__all__ = ["CONNECTOR", "HttpConnector", "HttpSources", "HttpTargets"]


class HttpSources(EndPool):
    """The sources of one process."""

    def source(
        self, key: int, options: Mapping[str, str], *, ordered: bool = True, only_present: bool = False
    ) -> Source:
        """A source that is not open yet.

        Raises:
            ConfigError: an option is invalid.
        """
        return ListenSource(self, key, read_source(options), read=to_messages, only_present=only_present)


class HttpTargets(RequestPool):
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
            lambda: HttpRequester(read),
            copying=read.copying,
            origin_identity=origin_identity,
            parallel=read.parallel,
            stall_seconds=read.timeout_seconds * 2,
        )


class HttpConnector:
    """The kind `http`."""

    kind = "http"
    capabilities = Capabilities(dispositions=frozenset({"dead-letter", "abandon"}))

    def sources(self) -> SourcePool:
        """A new pool."""
        return HttpSources()

    def targets(self) -> TargetPool:
        """A new pool."""
        return HttpTargets()

    def refusal_of(self, error: Exception) -> Refusal:
        """The refusal that an error means for a message."""
        return Refusal(RefusalKind.UNCLEAR, "", f"{type(error).__name__}: {error}")


CONNECTOR = HttpConnector()
