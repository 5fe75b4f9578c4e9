"""The ledgers of a run: what their routes need, and their collection in the background.

What it is: the ledger that a task declares, added to the targets of its routes, the check of its folder, and the thread that converts it to a
table. What it is not: the recording (`isthmus.connectors.ledger`), or the table (`isthmus.replication.ledger.table`), which needs Arrow and is
loaded only if there is a ledger.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from isthmus.bridge.route_spec import RouteSpec
from isthmus.connectors.ledger.connector import with_ledger
from isthmus.connectors.ledger.file import OPEN
from isthmus.errors import ConfigError, Fault
from isthmus.topology.model import Route

__all__ = ["LedgerWatch", "check_ledgers", "noted", "noted_diverts"]

log = logging.getLogger(__name__)

INTERVAL_SECONDS = 15.0


def noted(route: Route, spec: RouteSpec) -> RouteSpec:
    """The specification of a route, with the ledger that its task declares."""
    ledger = route.options.ledger
    if ledger is None:
        return spec
    return replace(noted_diverts(route, spec), target=with_ledger(spec.target, route.name, Path(ledger.path)))


def noted_diverts(route: Route, spec: RouteSpec) -> RouteSpec:
    """The specification of a route, with the ledger of diverted messages."""
    ledger = route.options.ledger
    if ledger is None:
        return spec
    path = Path(ledger.path)
    diverts = {name: with_ledger(end, route.name, path, taken="divert") for name, end in spec.diverts.items()}
    return replace(spec, diverts=diverts)


def check_ledgers(routes: Iterable[Route]) -> None:
    """Check whether ledgers can be written, without changing anything.

    Raises:
        ConfigError: contains every such fault.
    """
    faults = []
    for path in dict.fromkeys(route.options.ledger.path for route in routes if route.options.ledger is not None):
        at = Path(path)
        while not at.exists():
            at = at.parent
        if not at.is_dir() or not os.access(at, os.W_OK | os.X_OK):
            faults.append(Fault(f"ledger {path}: {at} is no folder that this user can write", "write another path"))
        elif at == Path(path) and next(at.iterdir(), None) is not None and not (at / OPEN.parent).exists():
            faults.append(Fault(f"ledger {path} contains something else and is no ledger", "name an empty folder"))
    if faults:
        raise ConfigError(faults)


class LedgerWatch:
    """Collects the ledgers of a run in the background.

    Args:
        ledgers: folder, and whether messages are stored.
    """

    def __init__(self, ledgers: Iterable[tuple[Path, bool]]) -> None:
        self._ledgers = dict(ledgers)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="ledger", daemon=True) if self._ledgers else None

    def start(self) -> LedgerWatch:
        """Start collecting."""
        if self._thread is not None:
            self._thread.start()
        return self

    def close(self) -> None:
        """Collect the files that writers have closed, and stop."""
        self._stop.set()
        if self._thread is not None and self._thread.is_alive():
            self._thread.join(60.0)

    def _watch(self) -> None:
        while not self._stop.wait(INTERVAL_SECONDS):
            self._collect()
        self._collect()

    def _collect(self) -> None:
        from isthmus.replication.ledger.table import collect

        for folder, bodies in self._ledgers.items():
            try:
                collect(folder, bodies=bodies)
            except Exception as error:  # noqa: BLE001 - records that cannot be collected now stay in their files
                log.warning("ledger %s cannot be written: %s", folder, error)
