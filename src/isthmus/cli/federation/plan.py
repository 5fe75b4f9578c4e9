"""`isthmus plan`: the entities, rules and routes that `apply` and `run` would make."""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, replace
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from isthmus.cli.app import exit_code
from isthmus.cli.federation.alive import with_run
from isthmus.connectors.administration import Administrations, Applied
from isthmus.errors import ConfigError
from isthmus.supervisor.fitting_table import FittingTable
from isthmus.topology import Change, Federation, Plan, plan
from isthmus.topology.file.name import DEFAULT_FILE
from isthmus.topology.file.source import load
from isthmus.topology.planning.orphan import former_notes, makes_own
from isthmus.topology.rights import Rights, rights

__all__ = ["change_table", "make_plan", "print_plan", "refuse", "register"]

_STYLE = {"create": "green", "update": "yellow", "delete": "red"}
_SIGN = {"create": "+", "update": "~", "delete": "-"}
_HAS_CHANGES = 2


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("plan")(run)


def run(
    file: Annotated[str, typer.Argument(help="The federation file.")] = DEFAULT_FILE,
    detailed: Annotated[
        bool,
        typer.Option(
            "--detailed-exitcode",
            help="Exit code 0: nothing to change; 2: there are changes; 1: any error, also bad input.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show what apply would change at the namespaces, and the routes that run would keep. Changes nothing.

    + is created, ~ is updated, - is deleted.
    """
    try:
        federation = load(file)
        with Administrations(federation) as administrations:
            made = with_run(make_plan(federation, administrations), file)
    except ConfigError as error:
        refused = refuse(error, file, as_json=as_json)
        raise (typer.Exit(1) if detailed else refused) from None
    if as_json:
        needed = [each.to_dict() for each in rights(federation)]
        print(json.dumps({"file": file, "ok": not made.faults, **made.to_dict(), "rights": needed}))
    else:
        console = Console(soft_wrap=True)
        print_plan(made, console)
        console.print(_rights_table(rights(federation)))
    if made.faults:
        raise typer.Exit(1 if detailed else 2)
    if detailed and made.changes:
        raise typer.Exit(_HAS_CHANGES)


def make_plan(federation: Federation, administrations: Administrations) -> Plan:
    """The plan of a file, with notes of remains of its tasks at topics that it does not name any more.

    The list of a namespace's entities is only read if the plan makes such subscriptions; if that is refused, there are no notes.

    Raises:
        ConfigError: a namespace cannot be opened or reached.
    """
    made = plan(federation, administrations.observe())
    if not makes_own(made):
        return made
    with contextlib.suppress(ConfigError):
        return replace(made, notes=(*made.notes, *former_notes(federation, administrations.inventory().values())))
    return made


def refuse(error: ConfigError, file: str, *, as_json: bool, applied: Applied | None = None) -> typer.Exit:
    """Print all faults and return the exit that ends the verb.

    Args:
        error: contains the faults.
        file: the federation file.
        as_json: print one JSON object.
        applied: the changes made before.
    """
    if as_json:
        faults = [asdict(fault) for fault in error.faults]
        made = applied.to_dict() if applied is not None else {}
        print(json.dumps({"file": file, "ok": False, **made, "error": error.to_dict(), "faults": faults}))
    else:
        print("\n".join(str(fault) for fault in error.faults))
    return typer.Exit(exit_code(error))


def print_plan(made: Plan, console: Console) -> None:
    """Print the plan as text."""
    for fault in made.faults:
        console.print(Text(str(fault), style="red"))
    if made.changes:
        console.print(change_table(made.changes))
    elif not made.faults:
        console.print("Nothing to change: everything is as the file declares.")
    table = FittingTable("route", "from", "to", "order", title=f"{len(made.routes)} routes", names=1)
    for route in made.routes:
        diverted = (f"diverted: {each.name}" for each in route.options.diverts)
        targets = ", ".join((*map(str, route.targets), *diverted))
        table.add_row(route.name, str(route.source), targets, route.options.ordering)
    console.print(table)
    for note in made.notes:
        console.print(Text(f"note: {note}"))


def change_table(changes: tuple[Change, ...], title: str = "changes") -> FittingTable:
    """Changes as a table."""
    table = FittingTable("", "namespace", "what", "details", title=f"{len(changes)} {title}", names=3)
    for change in changes:
        details = "\n".join((*change.details, *([change.why] if change.why else [])))
        action = Text(f"{_SIGN[change.action]} {change.action}", style=_STYLE[change.action])
        table.add_row(action, change.alias, f"{change.kind} {change.path}", details)
    return table


def _rights_table(needed: list[Rights]) -> FittingTable:
    """The least rights at each namespace."""
    title = "least rights; manage is for plan and apply"
    table = FittingTable("namespace", "right", "on", "granted by", title=title)
    for each in needed:
        for right in ("listen", "send", "manage"):
            entities: tuple[str, ...] = getattr(each, right)
            if entities:
                table.add_row(each.alias, right, "\n".join(entities), each.granted_by.get(right, ""))
    return table
