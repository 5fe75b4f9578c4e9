"""`isthmus init`: a commented federation file to start from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from isthmus.cli.candidate import patterns
from isthmus.errors import InvalidArgumentError
from isthmus.topology.file.document import suggest
from isthmus.topology.file.name import DEFAULT_FILE
from isthmus.topology.file.starter import starter
from isthmus.topology.pattern import AS_STEPS, PATTERNS, by_step

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("init")(run)


def run(
    pattern: Annotated[
        str,
        typer.Argument(
            help=f"The pattern of the first task: {', '.join(PATTERNS)}. Without one the patterns are listed.",
            autocompletion=patterns,
        ),
    ] = "",
    file: Annotated[str, typer.Argument(help="The file to write; - for standard output.")] = DEFAULT_FILE,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Write a commented federation file with one task of a pattern; without a pattern, list them."""
    if not pattern:
        _list(as_json=as_json)
        return
    if pattern in AS_STEPS:
        raise InvalidArgumentError("; ".join(by_step(pattern)))
    if pattern not in PATTERNS:
        raise InvalidArgumentError(f"there is no pattern {pattern!r}; {suggest(pattern, list(PATTERNS))}")
    text = starter(pattern)
    if file == "-":
        print(text, end="")
        return
    try:
        with Path(file).open("w" if force else "x", encoding="utf-8") as out:
            out.write(text)
    except FileExistsError:
        raise InvalidArgumentError(f"{file} exists already; write another name, or --force to replace it") from None
    except OSError as error:
        raise InvalidArgumentError(f"{file} cannot be written ({error.strerror})") from None
    print(json.dumps({"file": file, "pattern": pattern}) if as_json else f"{file} written; next: isthmus lint {file}")


def _list(*, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"patterns": {name: each.spec.description for name, each in PATTERNS.items()}}))
        return
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column()
    for name, each in PATTERNS.items():
        table.add_row(name, each.spec.description)
    Console().print(table)
    print(f"\nWrite {DEFAULT_FILE} with one of them: isthmus init PATTERN")
