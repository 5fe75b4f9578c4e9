"""The state of a federation, as seen from outside its run.

What it is: the run's status document while a run is alive; otherwise the backlog of each route as its source reports it, and what is in its spools, with
the last counts of the run that ended, so that the answer is correct also when nothing runs. What it is not: part of a run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from isthmus.clock import SystemClock
from isthmus.errors import IsthmusError
from isthmus.replication.namespace_clients import NamespaceClients, name_places
from isthmus.supervisor.condition import Condition
from isthmus.supervisor.pause import PauseFile
from isthmus.supervisor.status import describe, ends_of, read_status, spool_fields
from isthmus.supervisor.watch.fill import fill_now
from isthmus.supervisor.watch.watch import BacklogMeter
from isthmus.topology.model import Federation, Route
from isthmus.topology.route import routes

__all__ = ["survey"]

# Values that stay valid after a run has ended.
_KEPT = ("moved", "dead_lettered", "discarded", "diverted", "dropped", "resent", "restarts", "last_error")


def survey(federation: Federation, folder: Path) -> dict[str, Any]:
    """The status document of the run that uses a state folder, or one made from queries of the sources.

    Args:
        federation: with absolute paths.
        folder: the state folder of its runs.
    """
    document = read_status(folder)
    if document is not None and document["alive"]:
        return document | _beside(federation, document["routes"])
    counted = {route["name"]: route for route in document["routes"]} if document is not None else {}
    paused = PauseFile(folder).last_known()
    described = []
    clock = SystemClock()
    now = clock.monotonic()
    with NamespaceClients(federation, "isthmus-status") as clients:
        for route in routes(federation):
            condition = Condition()
            condition.stopped()
            if route.task in paused:
                condition.paused(paused[route.task])
            try:
                found = BacklogMeter(clock).measure(clients, route)
                if found is not None:
                    condition.backlog_seen(now, found.waiting, found.age_seconds(clock.wall_ms()))
            except (IsthmusError, OSError) as error:
                alias = route.source.alias
                condition.pending(f"{alias} cannot be read: {name_places(str(error), federation, [alias])}", away=alias)
            before = counted.get(route.name, {})
            kept = {name: before[name] for name in _KEPT if name in before}
            described.append(describe(route, condition, now) | kept | _spooled(route, folder))
    fill = [each.to_dict() for each in fill_now(federation, routes(federation), _sizes(document))]
    if document is None:
        return {"alive": False, "state": "not running", "routes": described, "fill": fill}
    last = {name: document[name] for name in ("process", "started_at", "age_seconds")}
    # A run that was killed, or that hangs, has not reported its end.
    state = "ended" if document["state"] == "ended" else "gone without ending"
    return {"alive": False, "state": state, "routes": described, "fill": fill, **last}


def _spooled(route: Route, folder: Path) -> dict[str, Any]:
    """What is in the spools of a route that no run carries: its source no longer has these messages."""
    if route.options.table is None and route.options.when_full != "spool" and not route.options.steps:
        return {}
    from isthmus.replication.shuffle.start import view_at_rest  # takes time, and most routes have no spool

    try:
        return {"spool": spool_fields(view_at_rest(route, folder))}
    except (IsthmusError, OSError) as error:
        return {"note": f"its spools cannot be read: {getattr(error, 'strerror', None) or error}"}


def _beside(federation: Federation, carried: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The differences between the file and the run that is alive: tasks that it was not asked to run, and those for which the file, which was
    changed since, has other routes, or none.
    """
    run = {each["name"]: {"source": each.get("source"), "target": each.get("target")} for each in carried}
    tasks = {each["task"] for each in carried}
    every = routes(federation)
    declared = {route.name: ends_of(route) for route in every}
    changed = [each.task for each in every if each.task in tasks and run.get(each.name) != declared[each.name]]
    changed += [each["task"] for each in carried if each["name"] not in declared]
    return {
        "tasks_not_run": list(dict.fromkeys(route.task for route in every if route.task not in tasks)),
        "tasks_changed": list(dict.fromkeys(changed)),
    }


def _sizes(document: dict[str, Any] | None) -> dict[tuple[str, str], tuple[float, int]]:
    """The sizes of the topics in the run's last document."""
    if document is None:
        return {}
    at = float(document["updated_at_seconds"])
    return {(each["namespace"], each["topic"]): (at, each["used_bytes"]) for each in document.get("fill", ())}
