"""`isthmus schema`: the federation file's JSON Schema."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from isthmus.topology.file.schema import federation_schema

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("schema")(run)


def run(
    as_json: Annotated[bool, typer.Option("--json", help="Print it on one line.")] = False,
) -> None:
    """Print the federation file's JSON Schema, for editors: `isthmus schema > isthmus.schema.json`."""
    print(json.dumps(federation_schema(), indent=None if as_json else 2))
