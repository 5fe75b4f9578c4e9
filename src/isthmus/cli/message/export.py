"""`isthmus export`: messages of an entity, written to a file; also `isthmus namespace export`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from isthmus.cli.interruption import REMOVES, interruption, terminable
from isthmus.cli.progress import progress
from isthmus.cli.where import (
    DEAD_LETTER,
    DEFAULT_FILE,
    FILTER,
    JSON,
    MAX,
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
    app.command("export")(run)


def run(
    entity: Entity,
    file: Annotated[Path, typer.Argument(help="File to write; must not exist.")],
    connection: Connection = "",
    alias: Alias = "",
    federation: Federation = DEFAULT_FILE,
    data: Data = None,
    ca_file: CaFile = "",
    dead_letter: Annotated[bool, DEAD_LETTER] = False,
    condition: Annotated[str, FILTER] = "",
    limit: Annotated[int, MAX] = 0,
    remove: Annotated[bool, typer.Option("--remove", help="Remove them, once the file is on disk.")] = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Write messages to a file, with all their bytes, in sequence order: active, deferred and scheduled ones.

    Ctrl-C and SIGTERM leave no file; once it is on disk, they end the removal after pending answers. Exit code 1 if some could not be removed.
    """
    from isthmus.operations.file.carry import export
    from isthmus.operations.message import make_choice

    chosen = make_choice(condition)
    target, path = target_of(connection, alias, federation, data, ca_file), entity_path(entity, dead_letter=dead_letter)
    is_interrupted = False

    @contextmanager
    def removing() -> Iterator[Callable[[], bool]]:
        nonlocal is_interrupted
        with interruption(REMOVES) as is_stopped:
            yield is_stopped
            is_interrupted = is_stopped()

    with target.open(path) as client, terminable(), progress("writing", quiet=as_json) as note:
        count, removal = export(
            client, path, file, chosen,
            namespace=target.name, limit=limit, remove_after=remove, progress=note, removing=removing,
        )  # fmt: skip
    left = removal.left if removal is not None else 0
    if as_json:
        done = removal._asdict() if removal is not None else {"removed": 0, "left": 0}
        print(json.dumps({"entity": path, "file": str(file), "written": count, **done}))
    else:
        more = f", removed {removal.removed}" if removal else ""
        rest = (
            "left: interrupted; they are in the file too"
            if is_interrupted
            else "are locked, or were removed by others: they are in the file, and may be in the entity too"
        )
        more += f", {left} {rest}" if left else ""
        print(f"{path}: wrote {count} messages to {file}{more}")
    raise typer.Exit(130 if is_interrupted else 1 if left else 0)
