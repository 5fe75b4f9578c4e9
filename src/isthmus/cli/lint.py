"""`isthmus lint`: every fault of a federation file at once."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from isthmus.errors import ConfigError
from isthmus.topology import lint, read
from isthmus.topology.duplicate import federation_notes
from isthmus.topology.source import DEFAULT_FILE, load_text

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("lint")(run)


def run(
    file: Annotated[str, typer.Argument(help="The federation file.")] = DEFAULT_FILE,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say everything that is wrong with a federation file, with line, column and what to write instead."""
    try:
        text = load_text(file)
        faults = lint(text, file)
    except ConfigError as error:
        text, faults = "", list(error.faults)
    notes = [] if faults else list(federation_notes(read(text, file)))
    if as_json:
        found = [asdict(fault) for fault in faults]
        print(json.dumps({"file": file, "ok": not faults, "faults": found} | ({"notes": notes} if notes else {})))
    elif faults:
        print("\n".join(str(fault) for fault in faults))
    else:
        federation = read(text, file)
        tasks = len(federation.tasks)
        print(f"{file}: {len(federation.namespaces)} namespaces, {tasks} task{'s' * (tasks != 1)}, no fault")
        for note in notes:
            print(f"note: {note}")
    if faults:
        raise typer.Exit(2)
