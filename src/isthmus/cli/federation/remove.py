"""`isthmus remove`: remains of a removed task or member at the namespaces."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from isthmus.cli.federation.plan import refuse
from isthmus.cli.federation.removal import claims_of, print_spools, remove_orphans, spools_left
from isthmus.cli.interruption import CHANGES, interruption
from isthmus.connectors.administration import Administrations
from isthmus.errors import ConfigError
from isthmus.supervisor.pause import PauseFile
from isthmus.topology.file.name import state_folder
from isthmus.topology.file.source import load
from isthmus.topology.planning.orphan import find_orphans, named

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("remove")(run)


def run(
    file: Annotated[str, typer.Argument(help="The federation file.")],
    name: Annotated[
        str, typer.Argument(metavar="TASK|MEMBER", help="A task or member that was removed from the file.")
    ],
    yes: Annotated[bool, typer.Option("--yes", help="Delete the listed entities, with their messages.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """List the entities that isthmus made for a removed task or member, with their messages; delete them with --yes.

    Only entities whose names begin with "isthmus.", and the task's claim; none of an application's. Stop the task's run first: while one holds a claim, nothing is deleted.
    """
    console = Console(soft_wrap=True)
    try:
        federation = load(file)
        spools = spools_left(federation, state_folder(file))
        with Administrations(federation) as administrations:
            existing = administrations.inventory()
            orphans = named(federation, find_orphans(federation, existing.values()), name)
            with interruption(CHANGES) as is_stopped:
                found = remove_orphans(
                    administrations,
                    existing,
                    orphans,
                    consent=yes,
                    console=None if as_json else console,
                    claims=claims_of(federation),
                    is_stopped=is_stopped,
                )
                is_interrupted = is_stopped()
    except ConfigError as error:
        raise refuse(error, file, as_json=as_json) from None
    if as_json:
        print(json.dumps({"file": file, "name": name, "ok": not found.failed, **found.to_dict(), "spools": spools}))
    elif not orphans:
        console.print(Text(f"The namespaces of {file} have nothing of {name}."))
    elif not yes:
        console.print("Nothing was deleted; add --yes to delete these, with the messages in them.")
    if not as_json:
        print_spools(spools, console)
    if found.failed:
        raise typer.Exit(130 if is_interrupted else 1)
    if yes and name not in federation.tasks:
        PauseFile(state_folder(file)).resume(name)  # else a new task of its name would start paused
