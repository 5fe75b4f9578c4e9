"""`isthmus doctor`: test everything that a federation needs of every namespace, without effect."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from isthmus.topology.file.name import DEFAULT_FILE
from isthmus.topology.file.source import load

__all__ = ["register"]

_STYLE = {"ok": "green", "warning": "yellow", "unknown": "yellow", "fault": "red"}


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("doctor")(run)


def run(
    file: Annotated[str, typer.Argument(help="The federation file.")] = DEFAULT_FILE,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Test everything that plan, apply and run need of every namespace: connection, certificate, clock, rights, tier, size.

    Nothing is received, sent or changed. Exit code 0: nothing prevents a run. 1: something does.
    """
    from isthmus.supervisor.examination.doctor import examine
    from isthmus.supervisor.examination.examination import Verdict, worst
    from isthmus.supervisor.fitting_table import FittingTable

    findings = examine(load(file))
    verdict = worst(findings)
    is_ready = verdict is not Verdict.FAULT
    if as_json:
        print(json.dumps({"file": file, "ok": is_ready, "findings": [each.to_dict() for each in findings]}))
    else:
        table = FittingTable("namespace", "tried", "", "found", names=3)
        for each in findings:
            name = each.verdict.name.lower()
            notes = (each.hint,) if each.hint else ()
            table.add_row(each.alias, each.subject, Text(name, style=_STYLE[name]), each.text, notes=notes)
        Console(soft_wrap=True).print(table)
    if not is_ready:
        raise typer.Exit(1)
