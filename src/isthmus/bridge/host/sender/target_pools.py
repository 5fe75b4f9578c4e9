"""The pools of targets of one process.

What it is: one pool for each kind, made when the first route of that kind is opened. What it is not: the targets' answers, which
their routes read (`sender.routes`).
"""

from __future__ import annotations

from collections.abc import Callable

from isthmus.bridge.host.guarded_pools import GuardedPools
from isthmus.bridge.port import Connector, Target, TargetPool
from isthmus.bridge.route_spec import RouteSpec

__all__ = ["TargetPools"]


class TargetPools(GuardedPools[TargetPool]):
    """The pools by kind.

    Args:
        connectors: the connector of a kind.
    """

    def __init__(self, connectors: Callable[[str], Connector]) -> None:
        super().__init__(lambda kind: connectors(kind).targets())

    def target(self, key: int, spec: RouteSpec, origin_identity: str) -> Target:
        """The target of a route, not open yet; its keys are named by `service`.

        Raises:
            ConfigError: an option is invalid.
            InvalidArgumentError: the kind is unknown.
        """
        return self.get(spec.target.kind).target(key, spec.target.options, origin_identity=origin_identity)
