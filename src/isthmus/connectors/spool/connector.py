"""The spool as a connector of the bridge: a target only; it is read by Spark (`source`)."""

from __future__ import annotations

from collections.abc import Mapping

from isthmus.bridge.port import Capabilities, SourcePool, Target, TargetPool
from isthmus.bridge.refusal import Refusal, RefusalKind
from isthmus.connectors.end_pool import EndPool
from isthmus.connectors.spool.option import target_options
from isthmus.connectors.spool.target import SpoolTarget
from isthmus.errors import InvalidArgumentError

__all__ = ["CONNECTOR", "SpoolConnector", "SpoolTargets"]


class SpoolTargets(EndPool):
    """The targets of one process."""

    def target(self, key: int, options: Mapping[str, str], *, origin_identity: str = "") -> Target:
        """A target that is not open yet.

        Raises:
            ConfigError: an option is of no use.
        """
        return SpoolTarget(self, key, target_options(options), origin_identity)


class SpoolConnector:
    """The kind `spool`."""

    kind = "spool"
    capabilities = Capabilities(reads=False, is_log=True, dispositions=frozenset(), reports_backlog=False)

    def sources(self) -> SourcePool:
        """There are none.

        Raises:
            InvalidArgumentError: always.
        """
        raise InvalidArgumentError("a spool is no source of a route; a query reads it by format('isthmus_spool')")

    def targets(self) -> TargetPool:
        """A new pool."""
        return SpoolTargets()

    def refusal_of(self, error: Exception) -> Refusal:
        """What an error means for a message."""
        return Refusal(RefusalKind.UNCLEAR, "", f"{type(error).__name__}: {error}")


CONNECTOR = SpoolConnector()
