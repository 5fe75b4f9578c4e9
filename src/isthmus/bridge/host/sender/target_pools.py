"""The pools of targets of one process.

What it is: one pool for each kind, made when the first route of that kind is opened. What it is not: what targets tell, which their
routes ask for (`sender.routes`).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping

from isthmus.bridge.port import Connector, Target, TargetPool
from isthmus.bridge.route_spec import RouteSpec

__all__ = ["TargetPools"]


class TargetPools:
    """The pools by kind.

    Args:
        connectors: the connector of a kind.
    """

    def __init__(self, connectors: Callable[[str], Connector]) -> None:
        self._connectors = connectors
        self._pools: dict[str, TargetPool] = {}

    def target(self, key: int, spec: RouteSpec, origin_identity: str) -> Target:
        """The target of a route, not open yet; its keys are named by `service`.

        Raises:
            ConfigError: an option is of no use.
            InvalidArgumentError: the kind is unknown.
        """
        kind = spec.target.kind
        pool = self._pools.get(kind)
        if pool is None:
            pool = self._pools[kind] = self._connectors(kind).targets()
        return pool.target(key, spec.target.options, origin_identity=origin_identity)

    def descriptors(self) -> Iterator[tuple[int, int]]:
        """What to poll."""
        for pool in self._pools.values():
            yield from pool.descriptors()

    def deadline(self, now: float) -> float:
        """When `service` is due though no descriptor is ready."""
        return min((pool.deadline(now) for pool in self._pools.values()), default=math.inf)

    def service(self, ready: Mapping[int, int], now: float) -> Iterator[int]:
        """Reads and writes; the keys of targets that have something to tell."""
        for pool in self._pools.values():
            yield from pool.service(ready, now)

    def flush(self) -> None:
        """Writes what is queued."""
        for pool in self._pools.values():
            pool.flush()

    def close(self, *, in_good_order: bool) -> None:
        """Closes everything; after an error nothing more is written."""
        for pool in self._pools.values():
            with contextlib.suppress(Exception):  # it ends anyway
                if in_good_order:
                    pool.flush()
            with contextlib.suppress(Exception):
                pool.close()
