"""Targets with an account, as a connector of the bridge: a wrapper around the connector of the target's kind."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from isthmus.bridge import registry
from isthmus.bridge.port import Capabilities, SourcePool, Target, TargetPool
from isthmus.bridge.refusal import Refusal
from isthmus.bridge.route_spec import End
from isthmus.connectors.ledger.file import LedgerFile
from isthmus.connectors.ledger.target import MOVED, LedgerTarget
from isthmus.errors import InvalidArgumentError

__all__ = ["CONNECTOR", "KIND", "LedgerConnector", "LedgerTargets", "with_ledger"]

KIND = "ledger"


def with_ledger(target: End, route: str, path: Path, taken: str = MOVED) -> End:
    """The target of a route with an account of the messages that it accepts.

    Args:
        target: the target.
        route: the name of the route.
        path: the ledger's folder.
        taken: the outcome of an accepted message.
    """
    inner = {"kind": target.kind, "options": dict(target.options)}
    options = {"path": str(path), "route": route, "target": json.dumps(inner)}
    return End(KIND, target.alias, options | ({"taken": taken} if taken != MOVED else {}))


class LedgerTargets:
    """The targets of one process: one pool for each kind of inner target."""

    def __init__(self) -> None:
        self._pools: dict[str, TargetPool] = {}

    def target(self, key: int, options: Mapping[str, str], *, origin_identity: str = "") -> Target:
        """A target that is not open yet.

        Raises:
            ConfigError: an option is invalid.
        """
        inner = json.loads(options["target"])
        kind = inner["kind"]
        if kind not in self._pools:
            self._pools[kind] = registry.connector(kind).targets()
        target = self._pools[kind].target(key, inner["options"], origin_identity=origin_identity)
        file = LedgerFile(Path(options["path"]))
        return LedgerTarget(target, options["route"], file, options.get("taken", MOVED))

    def descriptors(self) -> Sequence[tuple[int, int]]:
        """The descriptors to poll."""
        return [each for pool in self._pools.values() for each in pool.descriptors()]

    def deadline(self, now: float) -> float:
        """When `service` has work even if no descriptor is ready."""
        return min((pool.deadline(now) for pool in self._pools.values()), default=math.inf)

    def service(self, ready: Mapping[int, int], now: float) -> Sequence[int]:
        """The keys of the ends that have results."""
        return list(self._service(ready, now))

    def _service(self, ready: Mapping[int, int], now: float) -> Iterator[int]:
        for pool in self._pools.values():
            yield from pool.service(ready, now)

    def flush(self) -> None:
        """Writes queued bytes."""
        for pool in self._pools.values():
            pool.flush()

    def close(self) -> None:
        """Closes everything."""
        for pool in self._pools.values():
            pool.close()


class LedgerConnector:
    """The kind `ledger`."""

    kind = KIND
    capabilities = Capabilities(reads=False)

    def sources(self) -> SourcePool:
        """Refuses: there are no sources of this kind.

        Raises:
            InvalidArgumentError: always.
        """
        raise InvalidArgumentError("a ledger is kept at a target; it is not a source")

    def targets(self) -> TargetPool:
        """A new pool."""
        return LedgerTargets()

    def refusal_of(self, error: Exception) -> Refusal:
        """The refusal that an error means for a message, for any kind of target."""
        return registry.connector("servicebus").refusal_of(error)


CONNECTOR = LedgerConnector()
