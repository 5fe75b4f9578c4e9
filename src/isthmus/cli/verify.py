"""`isthmus verify`: prove that every message that entered anywhere stands everywhere, once and in order."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from isthmus.topology.source import DEFAULT_FILE, load

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("verify")(run)


def run(
    file: Annotated[str, typer.Argument(help="The federation file.")] = DEFAULT_FILE,
    task: Annotated[str, typer.Option(help="Verify this task only.")] = "",
    subscription: Annotated[
        str,
        typer.Option(
            help="The subscription to read at every member; by default `audit` where the task declares it, else the "
            "first ordinary one without a filter. Nobody may consume it."
        ),
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Browse every member and compare by origin and sequence number. Exit code 1 if anything is lost, doubled or out of order."""
    from isthmus.replication.verify import verify

    federation = load(file)
    results = [result.to_dict() for result in verify(federation, task=task, subscription=subscription)]
    clean = all(result["clean"] for result in results)
    if as_json:
        print(json.dumps({"file": file, "clean": clean, "tasks": results}))
    else:
        console = Console(soft_wrap=True)
        for result in results:
            console.print(_table(result))
        disordered = any(result["out_of_order"] for result in results)
        well = "nothing lost or doubled" if disordered else "nothing lost, doubled or out of order"
        console.print(well if clean else "NOT CLEAN", style="green" if clean else "red")
    if not clean:
        raise typer.Exit(1)


_COLUMNS = (
    "entered",
    "arrived",
    "waiting",
    "expired",
    "dead_lettered",
    "dropped",
    "lost",
    "duplicated",
    "out_of_order",
    "unknown",
)


def _table(result: dict[str, Any]) -> Table:
    table = Table(title=f"task {result['task']}", title_justify="left", box=None)
    table.add_column("from")
    table.add_column("at")
    for name in _COLUMNS:
        table.add_column(name.replace("_", " "), justify="right")
    for each in result["comparisons"]:
        table.add_row(each["origin"], each["member"], *(f"{each[name]:,}" for name in _COLUMNS))
    return table
