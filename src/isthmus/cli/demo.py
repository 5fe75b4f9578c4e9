"""`isthmus demo`: a federation of three airports on this machine, with a verification at the end."""

from __future__ import annotations

import json
import shutil
import signal
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from isthmus.cli.hang_up import HangUp
from isthmus.extra import require

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("demo")(run)


def run(
    messages: Annotated[
        int | None, typer.Option(help="Publish the first N flights; without it those of January, 27,004.", min=30)
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Publish all flights of 2013, 336,776.")] = False,
    keep: Annotated[
        Path | None,
        typer.Option(help="Leave namespaces, logs and the federation file in this folder; it must be empty."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the report as one JSON object in the last line.")
    ] = False,
) -> None:
    """Federate three namespaces, publish real flights to each, and verify that all of them are at every member.

    Exit code 1 if a message was lost, duplicated or out of order.
    """
    require("demo", "isthmus demo")
    from isthmus.demo.display import LiveView, report_view
    from isthmus.demo.play import MONTH_FLIGHTS, YEAR_FLIGHTS, Play
    from isthmus.errors import InvalidArgumentError

    if keep is not None and keep.exists() and any(keep.iterdir()):
        raise InvalidArgumentError(f"{keep} is not empty; name a new folder")
    count = min(YEAR_FLIGHTS, messages or (YEAR_FLIGHTS if everything else MONTH_FLIGHTS))
    folder = keep.absolute() if keep is not None else Path(tempfile.mkdtemp(prefix="isthmus-demo-"))
    signal.signal(signal.SIGTERM, _interrupt)
    HangUp(_interrupt).listen()
    try:
        with LiveView(Console(stderr=as_json)) as view:
            report = Play(folder, count, view).perform()
    finally:
        if keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    if as_json:
        Console(stderr=True).print(report_view(report))
        print(json.dumps({name: value for name, value in report.items() if name != "comparisons"}))
    else:
        Console().print(report_view(report))
    if report["lost"] or report["duplicated"] or report["out_of_order"]:
        raise typer.Exit(1)


def _interrupt(*_: object) -> None:
    """SIGTERM and the closing of the terminal end the demo like Ctrl-C, so that it ends its processes."""
    raise KeyboardInterrupt
