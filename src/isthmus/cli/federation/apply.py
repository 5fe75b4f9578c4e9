"""`isthmus apply`: makes the changes that `plan` shows."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from isthmus.cli.federation.alive import with_run
from isthmus.cli.federation.plan import change_table, make_plan, print_plan, refuse
from isthmus.cli.federation.removal import (
    Removal,
    claims_of,
    print_others,
    print_spools,
    remove_orphans,
    spools_left,
)
from isthmus.cli.interruption import CHANGES, interruption
from isthmus.connectors.administration import Administrations, Applied
from isthmus.errors import ConfigError, InvalidArgumentError
from isthmus.topology import Change
from isthmus.topology.file.name import DEFAULT_FILE, state_folder
from isthmus.topology.file.source import load
from isthmus.topology.planning.orphan import Orphan, find_orphans, of_tasks, strays

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("apply")(run)


def run(
    file: Annotated[str, typer.Argument(help="The federation file.")] = DEFAULT_FILE,
    prune: Annotated[
        bool,
        typer.Option(
            "--prune",
            help="Then list the entities that isthmus made for removed members of these tasks, with their messages, and entities that forward to a task "
            "that now names another queue.",
        ),
    ] = False,
    yes: Annotated[
        bool,
        typer.Option(
            "--yes",
            help="With --prune: delete the listed entities, with their messages, and end that forwarding.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Create what is missing at the namespaces and change what differs. Nothing is changed unless all of them answer.

    Ctrl-C ends it after the change that is under way.
    """
    if yes and not prune:
        raise InvalidArgumentError("--yes goes with --prune")
    pruned, others = Removal(), list[Orphan]()
    stray: tuple[Change, ...] = ()
    applied: Applied | None = None
    ended: Applied | None = None
    is_interrupted = False
    console = Console(soft_wrap=True)

    def print_change(change: Change) -> None:
        if not as_json:
            console.print(Text(f"{change.alias}: {change.action} {change.kind} {change.path}"))

    try:
        federation = load(file)
        spools = spools_left(federation, state_folder(file)) if prune else []
        with Administrations(federation) as administrations:
            made = with_run(make_plan(federation, administrations), file)
            if made.faults and not as_json:
                print_plan(made, console)
                raise typer.Exit(2)
            if prune:
                administrations.inventory()  # a refusal is reported before anything is changed
            with interruption(CHANGES) as is_stopped:
                applied = administrations.apply(made, print_change, is_stopped)
                if prune and applied.is_whole:
                    existing = administrations.inventory()
                    stray = strays(federation, existing.values())
                    if not as_json:
                        _print_strays(stray, console, consent=yes)
                    if yes:
                        ended = administrations.make(stray, print_change, is_stopped)
                    orphans, others = of_tasks(federation, find_orphans(federation, existing.values()))
                    shown = None if as_json else console
                    claims = claims_of(federation)
                    if ended is None or ended.is_whole:
                        pruned = remove_orphans(
                            administrations, existing, orphans,
                            consent=yes, console=shown, claims=claims, is_stopped=is_stopped,
                        )  # fmt: skip
                is_interrupted = is_stopped()
    except ConfigError as error:
        raise refuse(error, file, as_json=as_json, applied=applied) from None
    ok = applied.is_whole and not pruned.failed and (ended is None or ended.is_whole)
    deleted = tuple(f"{what} belongs to " for what in pruned.deleted)
    notes = tuple(each for each in made.notes if not each.startswith(deleted))
    if as_json:
        answer = {**applied.to_dict(), "notes": notes, "faults": []}
        if prune:
            unknown = sorted({each.task for each in others})
            answer |= {
                **pruned.to_dict(),
                "unknown_tasks": unknown,
                "forwarding": [each.to_dict() for each in stray],
                "ended": ended.to_dict() if ended else None,
                "spools": spools,
            }
        print(json.dumps({"file": file, "ok": ok, **answer}))
    else:
        _print_outcome(applied, notes, console)
        if pruned.rows and not yes:
            console.print("Nothing was deleted; add --yes to delete these, with the messages in them.")
        if stray and not yes:
            console.print("Nothing that forwards was changed; add --yes to end it.")
        if ended is not None and ended.failed is not None:
            failure = f"{ended.failed.alias}: update {ended.failed.kind} {ended.failed.path} failed: {ended.error}"
            console.print(Text(f"{failure}; run it again", style="red"))
        print_others(others, file, console)
        print_spools(spools, console)
    if not ok:
        raise typer.Exit(130 if is_interrupted else 1)


def _print_strays(stray: tuple[Change, ...], console: Console, *, consent: bool) -> None:
    """Print the entities that forward to a task that no longer names them."""
    for each in stray:
        for field, what in (("forward_to", "messages"), ("forward_dead_letters_to", "dead-lettered messages")):
            if getattr(each.after, field) is not None:
                target = getattr(each.before, field)
                answer = f"{each.kind} {each.path} at {each.alias} forwards its {what} to {target}, and its task no longer names it"
                console.print(Text(f"{answer}: they go where those of the new one go" if not consent else answer))


def _print_outcome(applied: Applied, notes: tuple[str, ...], console: Console) -> None:
    if applied.is_whole:
        done = len(applied.done)
        console.print(f"{done} changes made." if done else "Nothing to change: everything is as the file declares.")
        for note in notes:
            console.print(Text(f"note: {note}"))
        return
    failed = applied.failed
    if failed is not None:
        console.print(
            Text(f"{failed.alias}: {failed.action} {failed.kind} {failed.path} failed: {applied.error}", style="red")
        )
    if applied.pending:
        console.print(change_table(applied.pending, "changes not begun"))
    console.print(f"{len(applied.done)} changes made; run apply again: it continues where this one ended.")
