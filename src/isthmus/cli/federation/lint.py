"""`isthmus lint`: every fault of a federation file at once."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated, Any

import typer

from isthmus.errors import ConfigError, Fault
from isthmus.topology import lint, read
from isthmus.topology.duplicate import federation_notes
from isthmus.topology.file.name import DEFAULT_FILE
from isthmus.topology.file.source import file_faults, load_text
from isthmus.topology.linter import warnings

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("lint")(run)


def run(
    file: Annotated[str, typer.Argument(help="The federation file.")] = DEFAULT_FILE,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Report every fault of a federation file, with line, column and what to write instead.

    Warnings name settings that are allowed and cause trouble later; they do not change the exit code.
    """
    try:
        text = load_text(file)
        faults, warned = lint(text, file), warnings(text, file)
        faults = faults or file_faults(read(text, file))
    except ConfigError as error:
        text, faults, warned = "", list(error.faults), []
    notes = [] if faults else list(federation_notes(read(text, file)))
    if as_json:
        answer: dict[str, Any] = {
            "faults": [asdict(fault) for fault in faults],
            "warnings": [asdict(each) for each in warned],
        }
        print(json.dumps({"file": file, "ok": not faults, **answer} | ({"notes": notes} if notes else {})))
    else:
        _show(file, text, faults, warned)
        for note in notes:
            print(f"note: {note}")
    if faults:
        raise typer.Exit(2)


def _show(file: str, text: str, faults: list[Fault], warned: list[Fault]) -> None:
    for each in warned:
        print(f"warning: {each}")
    if faults:
        print("\n".join(str(fault) for fault in faults))
    else:
        federation = read(text, file)
        tasks = len(federation.tasks)
        print(f"{file}: {len(federation.namespaces)} namespaces, {tasks} task{'s' * (tasks != 1)}, no fault")
