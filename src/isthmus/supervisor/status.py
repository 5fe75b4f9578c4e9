"""The status document of a run, for other processes of this machine.

What it is: the document that `run` writes every second into its state folder, and its reading by `status` and the demo.
What it is not: a history, or a promise: the reader gets the age of the document and whether its writer is alive.

Invariants:
    I1. A reader sees a whole document or none: it is replaced atomically.
    I2. The document of a run that has ended has its last counts; its phases and backlog are no longer valid.
    I3. The folder is this user's alone; the document contains no secret.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil

from isthmus.connectors.secret import scrub
from isthmus.replication.query.route_progress import SpoolView
from isthmus.supervisor.condition import Condition
from isthmus.topology.model import Route

__all__ = ["Footprint", "StatusFile", "describe", "ends_of", "read_status", "spool_fields"]

log = logging.getLogger(__name__)

FILE = "status.json"
STALE_SECONDS = 10.0
REPEAT_SECONDS = 1.0
FOOTPRINT_SECONDS = 5.0


def describe(route: Route, condition: Condition, now: float, footprint: Footprint | None = None) -> dict[str, Any]:
    """One route as plain values.

    Args:
        route: the route.
        condition: its condition.
        now: monotonic seconds.
        footprint: the memory of its processes.
    """
    age = condition.oldest_age_seconds
    away, why = condition.away
    return {
        "name": route.name,
        "task": route.task,
        **ends_of(route),
        "phase": str(condition.phase),
        "state": scrub(condition.text(now)),
        "well": condition.is_well(),
        "moved": condition.moved,
        "dead_lettered": condition.counts.dead_lettered,
        "discarded": condition.counts.discarded,
        "diverted": condition.counts.diverted,
        "resent": condition.counts.resent,
        "rate_per_second": round(condition.rate_per_second(now), 1),
        "limit": condition.limit,
        "canary_age_seconds": _rounded(condition.canary[0]),
        "canary_latency_seconds": _rounded(condition.canary[1]),
        "waiting": condition.waiting,
        "oldest_age_seconds": None if age is None else round(age, 1),
        "oldest_since": _since(age) if age else "",
        "away": {"namespace": away, "reason": scrub(why)} if away else None,
        "note": scrub(condition.note),
        "restarts": condition.restarts,
        "last_error": scrub(condition.last_error),
        "last_error_seconds_ago": round(now - condition.last_error_at, 1) if condition.last_error else None,
        "spool": spool_fields(condition.spool),
        "processes": list(condition.processes),
        "memory_bytes": footprint.of(condition.processes) if footprint is not None else 0,
    }


def ends_of(route: Route) -> dict[str, str]:
    """The source and the target of a route."""
    return {"source": str(route.source), "target": ", ".join(str(target) for target in route.targets)}


def spool_fields(view: SpoolView | None) -> dict[str, Any] | None:
    """The content of a route's spools as plain values."""
    if view is None:
        return None
    age = max(0.0, time.time() - view.oldest_ms / 1000) if view.oldest_ms else None
    return {
        "waiting": view.waiting,
        "bytes": view.size_bytes,
        "oldest_age_seconds": _rounded(age),
        "suppressed": view.suppressed,
        "refused": view.refused,
        "in_windows": view.in_windows,
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def _since(age_seconds: float) -> str:
    return (datetime.now(UTC) - timedelta(seconds=age_seconds)).isoformat(timespec="seconds")


@dataclass(slots=True)
class Footprint:
    """Resident memory of this process and all below it, measured at intervals.

    Attributes:
        total_bytes: of all of them; pages that they share count each time.
        processes: their number.
    """

    total_bytes: int = 0
    processes: int = 0
    _by_process: dict[int, int] = field(default_factory=dict)
    _measured_at: float = float("-inf")

    def measure(self) -> None:
        """Measure again, unless it was done moments ago."""
        now = time.monotonic()
        if now - self._measured_at < FOOTPRINT_SECONDS:
            return
        self._measured_at = now
        own = psutil.Process()
        found: dict[int, int] = {}
        for process in (own, *own.children(recursive=True)):
            try:
                found[process.pid] = process.memory_info().rss
            except psutil.Error:
                continue
        self._by_process, self.total_bytes, self.processes = found, sum(found.values()), len(found)

    def of(self, processes: tuple[int, ...]) -> int:
        """Bytes of some of the processes."""
        return sum(self._by_process.get(process, 0) for process in processes)


class StatusFile:
    """The document of one run.

    Args:
        folder: the state folder; created if absent.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._path = folder / FILE
        self._started_at = datetime.now(UTC).isoformat(timespec="seconds")
        own = psutil.Process()
        self._head = {"version": 1, "process": own.pid, "process_started": own.create_time()}
        self._fault = ""

    def write(
        self,
        state: str,
        routes: list[dict[str, Any]],
        footprint: Footprint,
        fill: Sequence[dict[str, Any]] = (),
    ) -> dict[str, Any]:
        """Replace the document. Where that fails, e.g. on a full disk, it is logged once.

        Args:
            state: of the run as a whole: starting, running, draining, ended.
            routes: from `describe`.
            footprint: of the whole run.
            fill: the fill of the topics, as far as known.

        Returns:
            The document.
        """
        document = {
            **self._head,
            "started_at": self._started_at,
            "updated_at_seconds": time.time(),
            "state": state,
            "memory_bytes": footprint.total_bytes,
            "processes": footprint.processes,
            "routes": routes,
            "fill": list(fill),
        }
        fault = ""
        try:
            self._replace(document)
        except OSError as error:
            fault = f"{self._path} cannot be written: {error.strerror or error}"
        if fault and fault != self._fault:
            log.warning("%s", fault)
        self._fault = fault
        return document

    @contextmanager
    def repeated(
        self, state: str, routes: list[dict[str, Any]], every_seconds: float = REPEAT_SECONDS
    ) -> Iterator[None]:
        """Within, the document has these contents, and does not become old."""
        is_over = threading.Event()

        def repeat() -> None:
            while not is_over.wait(every_seconds):
                self.write(state, routes, Footprint())

        self.write(state, routes, Footprint())
        thread = threading.Thread(target=repeat, name="status", daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()

    def _replace(self, document: dict[str, Any]) -> None:
        temporary = self._path.with_suffix(".new")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(json.dumps(document))  # `dump` uses the slower encoder, written in Python
        temporary.replace(self._path)


def read_status(folder: Path) -> dict[str, Any] | None:
    """The document of the run that uses a state folder, with `alive` and `age_seconds` added; None if there is none."""
    try:
        document: dict[str, Any] = json.loads((folder / FILE).read_text(encoding="utf-8"))
        age_seconds = max(0.0, time.time() - float(document["updated_at_seconds"]))
        alive = document["state"] != "ended" and _lives(document) and age_seconds < STALE_SECONDS
    except (OSError, ValueError, KeyError, TypeError):  # missing, or not written by a run of this release
        return None
    return document | {"alive": alive, "age_seconds": round(age_seconds, 1)}


def _lives(document: dict[str, Any]) -> bool:
    try:
        return bool(abs(psutil.Process(document["process"]).create_time() - document["process_started"]) < 1.0)
    except psutil.Error:
        return False
