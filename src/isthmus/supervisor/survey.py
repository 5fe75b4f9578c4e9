"""The state of a federation as someone outside its run sees it.

What it is: the run's status document where a run is alive; otherwise a look at what waits before each route, so that the
answer is true also when nothing runs. What it is not: part of a run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from isthmus.clock import SystemClock
from isthmus.errors import IsthmusError
from isthmus.replication.reach import Reach
from isthmus.supervisor.condition import Condition
from isthmus.supervisor.status import describe, read_status
from isthmus.supervisor.watch import BacklogLook
from isthmus.topology.model import Federation
from isthmus.topology.route import routes

__all__ = ["survey"]


def survey(federation: Federation, folder: Path) -> dict[str, Any]:
    """The status document of the run that uses a state folder, or one made by looking.

    Args:
        federation: with absolute paths.
        folder: the state folder of its runs.
    """
    document = read_status(folder)
    if document is not None and document["alive"]:
        return document
    described = []
    clock = SystemClock()
    now = clock.monotonic()
    with Reach(federation, "isthmus-status") as reach:
        for route in routes(federation):
            condition = Condition()
            condition.stopped()
            try:
                found = BacklogLook(clock)(reach.peek(route.source))
                age_ms = clock.wall_ms() - found.oldest_enqueued_ms if found.oldest_enqueued_ms else 0
                condition.stands(found.waiting, max(0, age_ms) / 1000)
            except IsthmusError as error:
                condition.pending(f"{route.source.alias} cannot be read: {error}")
            described.append(describe(route, condition, now))
    last = {name: document[name] for name in ("process", "started_at", "age_seconds")} if document else {}
    return {"alive": False, "state": "not running", "routes": described, **last}
