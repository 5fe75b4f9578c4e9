"""`isthmus namespace health`: whether a namespace on this machine is ready.

What it is: options, output and exit code. What it is not: the query (`isthmus.operations.server.health`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["register"]


def register(namespace: typer.Typer) -> None:
    """Add the verb."""
    namespace.command("health")(_health)


def _health(
    data: Annotated[Path, typer.Option(help="Folder of the namespace.")],
    wait: Annotated[float, typer.Option(min=0.0, help="Seconds to wait until it is ready.")] = 0.0,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Query whether a namespace of this machine is ready; no key is needed.

    Exit code 1 if it is not: its disk refuses changes, it is starting or stopping, or does not answer.
    """
    from isthmus.operations.server.health import wait_ready

    found = wait_ready(data, wait)
    if json_output:
        answer = found._asdict()
        for name in ("partition_stores_down", "zones_down", "without_listener"):
            if not answer[name]:
                del answer[name]
        print(json.dumps(answer))
    else:
        print(found.status + (f": {found.reason}" if found.reason else ""))
        if found.partition_stores_down:
            print(f"partition stores down: {', '.join(map(str, found.partition_stores_down))}")
        if found.zones_down:
            print(f"zones down: {', '.join(map(str, found.zones_down))}")
        if found.without_listener:
            print(f"hybrid connections without a listener: {found.without_listener}")
    raise typer.Exit(0 if found.is_ready else 1)
