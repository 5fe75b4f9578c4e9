"""`isthmus status`: the state of a federation's routes, and their backlog."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from isthmus.cli.live import show_repeatedly
from isthmus.topology.file.name import DEFAULT_FILE
from isthmus.topology.file.source import load

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("status")(run)


def run(
    file: Annotated[str, typer.Argument(help="The federation file.")] = DEFAULT_FILE,
    state: Annotated[
        Path | None,
        typer.Option(help="Folder of the run's state; by default .isthmus/NAME beside the file."),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Update it until Ctrl-C.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show backlog, lag, rates, memory and errors of every route.

    Exit code 0: a run is alive, and every route of its tasks moves its waiting messages. 1: no run is alive, or a route is stalled,
    fails, may not start, or is moved by another run. With --watch the code is that of the last status.
    """
    from isthmus.supervisor.watch.survey import survey
    from isthmus.topology.file.name import state_folder

    federation = load(file)
    folder = state or state_folder(file)
    found = survey(federation, folder)
    if as_json:
        print(json.dumps(found))
    elif watch:
        is_first = True

        def table() -> Any:
            nonlocal found, is_first
            if not is_first:
                time.sleep(1.0)
                found = survey(federation, folder)
            is_first = False
            return _table(found)

        with suppress(KeyboardInterrupt):  # Ctrl-C ends the display
            show_repeatedly(table)
    else:
        Console(soft_wrap=True).print(_table(found))
    if not found["alive"] or not all(route.get("well", True) for route in found["routes"]):
        raise typer.Exit(1)


def _table(found: dict[str, Any]) -> Any:
    from rich.console import Group

    from isthmus.supervisor.display import fill_lines, route_table

    title = "no run is alive"
    if found["alive"]:
        title = f"run by process {found['process']} since {found['started_at']}"
        if others := found.get("tasks_not_run"):
            title += f"; it was not asked to run {', '.join(others)}"
        if changed := found.get("tasks_changed"):
            title += (
                f"; the file was changed since, and has other routes of {', '.join(changed)}, or none: start it again"
            )
    elif "process" in found:
        title += f"; the last one, process {found['process']}, started at {found['started_at']}: {found['state']}, "
        title += f"last status {found['age_seconds']:,.0f} s ago"
    return Group(route_table(found["routes"], title), *fill_lines(found.get("fill", ())))
