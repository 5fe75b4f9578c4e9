"""`isthmus drill`: test the loss of a member under load."""

from __future__ import annotations

import json
import shutil
import signal
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from isthmus.errors import InvalidArgumentError

if TYPE_CHECKING:
    from isthmus.demo.drill.account import DrillReport
    from isthmus.demo.drill.drill import DrillPlan

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("drill")(run)


def run(
    pattern: Annotated[str, typer.Argument(help="active-passive or all-active.")],
    rate: Annotated[float, typer.Option(help="Messages a second, of each publisher.", min=1, max=5000)] = 100,
    before: Annotated[float, typer.Option(help="Seconds of load before the loss.", min=1)] = 5,
    away: Annotated[float, typer.Option(help="Seconds for which the member is unreachable.", min=1)] = 10,
    after: Annotated[float, typer.Option(help="Seconds of load after its return.", min=0)] = 5,
    file: Annotated[
        str,
        typer.Option(
            "--file",
            help="Drill with this federation, whose run is alive: the drill asks you to make a member unreachable.",
        ),
    ] = "",
    task: Annotated[str, typer.Option(help="With --file: the task, of the pattern.")] = "",
    subscription: Annotated[
        str, typer.Option(help="With --file: the subscription to consume at each member, which no other receiver uses.")
    ] = "",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the report as one JSON object in the last line.")
    ] = False,
) -> None:
    """Lose a member under load, bring it back, and report RPO and RTO.

    Without --file with two namespaces of its own on this machine, of which one is killed and restarted. RPO: messages that the
    lost member had acknowledged and that were not handled elsewhere before it returned. RTO: from the loss until a message that was
    published after it was handled. Exit code 1 if a message was lost or handled twice.
    """
    from isthmus.demo.drill.drill import PATTERNS, DrillPlan

    if pattern not in PATTERNS:
        raise InvalidArgumentError(f"there is no drill for {pattern}: write {' or '.join(PATTERNS)}")
    if not file and (task or subscription):
        raise InvalidArgumentError("--task and --subscription go with --file")
    settings = DrillPlan(
        pattern=pattern, rate_per_second=rate, before_seconds=before, away_seconds=away, after_seconds=after
    )
    signal.signal(signal.SIGTERM, _interrupt)
    report = _with_operator(settings, file, task, subscription) if file else _alone(settings)
    if as_json:
        print(json.dumps({"pattern": pattern, **asdict(report)}))
    else:
        _show(report)
    if report.lost or report.handled_twice:
        raise typer.Exit(1)


def _alone(settings: DrillPlan) -> DrillReport:
    from isthmus.demo.drill.drill import rehearse
    from isthmus.extra import require

    require("demo", "isthmus drill")
    folder = Path(tempfile.mkdtemp(prefix="isthmus-drill-"))
    try:
        return rehearse(settings, folder, _print_change)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _with_operator(settings: DrillPlan, file: str, name: str, subscription: str) -> DrillReport:
    from dataclasses import replace

    from isthmus.demo.drill.drill import Drill
    from isthmus.supervisor.status import read_status
    from isthmus.topology.file.name import state_folder
    from isthmus.topology.file.source import load

    federation = load(file)
    found = federation.tasks.get(name)
    if found is None or found.pattern != settings.pattern:
        fitting = [each.name for each in federation.tasks.values() if each.pattern == settings.pattern]
        raise InvalidArgumentError(f"write --task: {' or '.join(fitting) or 'no task has this pattern'}")
    if not subscription:
        raise InvalidArgumentError(
            "write --subscription NAME: the drill consumes its messages at each member, so that no other receiver may use it"
        )
    document = read_status(state_folder(file))
    if document is None or not document["alive"]:
        raise InvalidArgumentError(f"no run of {file} is alive; start it: isthmus run {file}")
    plan = replace(settings, members=found.members, topic=getattr(found, "entity"), subscription=subscription)  # noqa: B009
    return Drill(federation, plan, _Operator(), _print_change).play()


class _Operator:
    """A user who makes members unreachable."""

    def lose(self, alias: str) -> None:
        self._ask(f"Make {alias} unreachable now, and press Enter once it is.")

    def bring_back(self, alias: str) -> None:
        self._ask(f"Make {alias} reachable again, and press Enter once it is.")

    @staticmethod
    def _ask(text: str) -> None:
        print(text, file=sys.stderr, flush=True)
        if not sys.stdin.readline():  # else the report would be of a loss that did not happen
            raise InvalidArgumentError("standard input has ended without Enter; run the drill at a terminal")


def _print_change(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _show(report: DrillReport) -> None:
    rto = "never recovered" if report.rto_seconds is None else f"{report.rto_seconds:.1f} s"
    for label, value in (
        ("RPO", f"{report.rpo_messages:,} messages late until the member returned"),
        ("RTO", rto),
        ("sent", f"{report.sent:,}"),
        ("handled", f"{report.handled:,}"),
        ("handled twice", f"{report.handled_twice:,}"),
        ("suppressed", f"{report.suppressed:,} were received again and recognised"),
        ("lost", f"{report.lost:,}"),
    ):
        print(f"{label:<14} {value}")


def _interrupt(*_: object) -> None:
    """SIGTERM ends the drill like Ctrl-C, so that it ends its processes."""
    raise KeyboardInterrupt
