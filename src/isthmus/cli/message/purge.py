"""`isthmus purge`: remove messages of an entity; also `isthmus namespace purge`."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from isthmus.cli.interruption import REMOVES, interruption
from isthmus.cli.progress import progress
from isthmus.cli.where import (
    DEAD_LETTER,
    DEFAULT_FILE,
    FILTER,
    JSON,
    MAX,
    YES,
    Alias,
    CaFile,
    Connection,
    Data,
    Entity,
    Federation,
    entity_path,
    target_of,
)

__all__ = ["register", "run"]


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("purge")(run)


def run(
    entity: Entity,
    connection: Connection = "",
    alias: Alias = "",
    federation: Federation = DEFAULT_FILE,
    data: Data = None,
    ca_file: CaFile = "",
    dead_letter: Annotated[bool, DEAD_LETTER] = False,
    condition: Annotated[str, FILTER] = "",
    limit: Annotated[int, MAX] = 0,
    yes: Annotated[bool, YES] = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Remove messages: active, deferred and scheduled ones that exist now.

    Ctrl-C ends it after pending answers. Exit code 1 if some could not be removed, since a receiver has them locked.
    """
    from isthmus.operations.message import make_choice
    from isthmus.operations.peek import take_census
    from isthmus.operations.removal.purge import Removal, remove

    chosen = make_choice(condition)
    target, path = target_of(connection, alias, federation, data, ca_file), entity_path(entity, dead_letter=dead_letter)
    with target.open(path) as client:
        with progress("counting", quiet=as_json) as note:
            meant = take_census(client, path, chosen, limit=limit, progress=note)
        counts, total = meant.counts(), meant.total
        done, is_interrupted = Removal(0, 0), False
        if yes and total:
            with interruption(REMOVES) as is_stopped, progress("removing", total, quiet=as_json) as note:
                done = remove(client, path, meant, progress=note, is_stopped=is_stopped)
                is_interrupted = is_stopped()
    if as_json:
        print(json.dumps({"entity": path, "dry_run": not yes, "meant": counts, **done._asdict()}))
    elif yes:
        rest = "left: interrupted" if is_interrupted else "are locked, or were removed by others"
        print(f"{path}: removed {done.removed} messages" + (f", {done.left} {rest}" if done.left else ""))
    else:
        answer = ", ".join(f"{count} {state}" for state, count in counts.items())
        print(f"{path}: {total} messages would be removed ({answer}); --yes removes them")
    raise typer.Exit(130 if is_interrupted else 1 if done.left else 0)
