"""The spool as a connector of the bridge: routes write messages into it, and read messages that others wrote; Spark reads it with `source`."""

from __future__ import annotations

from collections.abc import Mapping

from isthmus.bridge.port import Capabilities, Source, SourcePool, Target, TargetPool
from isthmus.bridge.refusal import Refusal, RefusalKind
from isthmus.connectors.end_pool import EndPool
from isthmus.connectors.spool.option import source_options, target_options
from isthmus.connectors.spool.port.source import SpoolSource
from isthmus.connectors.spool.target import SpoolTarget

__all__ = ["CONNECTOR", "SpoolConnector", "SpoolSources", "SpoolTargets"]


class SpoolSources(EndPool):
    """The sources of one process."""

    def source(
        self, key: int, options: Mapping[str, str], *, ordered: bool = True, only_present: bool = False
    ) -> Source:
        """A source that is not open yet; it keeps the order with and without `ordered`.

        Raises:
            ConfigError: an option is invalid.
        """
        return SpoolSource(self, key, source_options(options), only_present=only_present)


class SpoolTargets(EndPool):
    """The targets of one process."""

    def target(self, key: int, options: Mapping[str, str], *, origin_identity: str = "") -> Target:
        """A target that is not open yet.

        Raises:
            ConfigError: an option is invalid.
        """
        return SpoolTarget(self, key, target_options(options), origin_identity)


class SpoolConnector:
    """The kind `spool`."""

    kind = "spool"
    capabilities = Capabilities(dispositions=frozenset({"dead-letter", "abandon"}), reports_backlog=False)

    def sources(self) -> SourcePool:
        """A new pool."""
        return SpoolSources()

    def targets(self) -> TargetPool:
        """A new pool."""
        return SpoolTargets()

    def refusal_of(self, error: Exception) -> Refusal:
        """The refusal that an error means for a message."""
        return Refusal(RefusalKind.UNCLEAR, "", f"{type(error).__name__}: {error}")


CONNECTOR = SpoolConnector()
