"""Cases of the page's section Nothing moves: what `isthmus status` says of a route."""

from __future__ import annotations

from typer.testing import CliRunner

from isthmus.cli.app import create_app
from isthmus.replication.query.route_progress import RouteProgress
from isthmus.replication.query.tally import Counts
from isthmus.supervisor.condition import MOVING_SECONDS, Condition
from troubleshooting.case import Stage, shows


def _started() -> Condition:
    made = Condition(stalled_after_seconds=10)
    made.starting(0)
    made.seen(1, RouteProgress(counts=Counts(3, 3)))
    return made


@shows("stalled", "nothing moved for")
def _stalled(stage: Stage) -> str:
    made = _started()
    made.backlog_seen(1, 7, 1.0)
    made.seen(2 + MOVING_SECONDS + 10, RouteProgress(counts=Counts(3, 3)))
    return made.text(2 + MOVING_SECONDS + 10)


@shows("its target has not answered")
def _awaited(stage: Stage) -> str:
    made = _started()
    made.backlog_seen(1, 7, 1.0)
    made.seen(2 + MOVING_SECONDS + 10, RouteProgress(counts=Counts(3, 3), is_awaited=True))
    return made.text(2 + MOVING_SECONDS + 10)


@shows("failed, retry in")
def _failed(stage: Stage) -> str:
    made = _started()
    made.failed(2, "no answer", 5)
    return made.text(2)


@shows("pending")
def _pending(stage: Stage) -> str:
    made = _started()
    made.pending("ewr cannot be reached", "ewr")
    return made.text(2)


@shows("claimed by")
def _claimed(stage: Stage) -> str:
    made = _started()
    made.claimed("process 7 on here")
    return made.text(2)


@shows("paused since")
def _paused(stage: Stage) -> str:
    made = _started()
    made.paused("10:00")
    return made.text(2)


@shows("at most")
def _limited(stage: Stage) -> str:
    made = _started()
    made.seen(2, RouteProgress(counts=Counts(4, 4), limit="1/m", limit_per_second=1 / 60))
    return made.text(2)


@shows("a canary that was sent … ago has not arrived")
def _canary(stage: Stage) -> str:
    made = _started()
    made.canary = (95.0, 0.02, 90.0)
    made.seen(20, RouteProgress(counts=Counts(3, 3)))
    return made.text(20)


@shows("no run is alive")
def _no_run(stage: Stage) -> str:
    stage.patch.chdir(stage.folder)
    (stage.folder / "isthmus.yaml").write_text(
        "isthmus: 1\nnamespaces: {ewr: {connection: env:EWR}, jfk: {connection: env:JFK}}\n"
        "tasks: {flights: {pattern: all-active, topic: flights, members: [ewr, jfk]}}\n"
    )
    return CliRunner().invoke(create_app("status"), ["status"]).output
