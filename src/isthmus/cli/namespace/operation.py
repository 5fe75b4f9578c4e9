"""`isthmus namespace stats|backup`, and the verbs about messages that are verbs of `isthmus` too.

What it is: options, tables, progress. What it is not: the operations (`isthmus.operations`, `isthmus.broker.backup`).
"""

from __future__ import annotations

import importlib
import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from isthmus.cli.where import DEFAULT_FILE, JSON, Alias, CaFile, Connection, Data, Federation, target_of

__all__ = ["register_operations"]


def register_operations(namespace: typer.Typer) -> None:
    """Add the verbs."""
    namespace.command("stats")(_stats)
    for name in ("peek", "purge", "resubmit", "export", "import_"):
        namespace.command(name.rstrip("_"))(importlib.import_module(f"isthmus.cli.message.{name}").run)
    namespace.command("backup")(_backup)


def _stats(
    connection: Connection = "",
    alias: Alias = "",
    federation: Federation = DEFAULT_FILE,
    data: Data = None,
    ca_file: CaFile = "",
    interval: Annotated[float, typer.Option(help="Seconds between two samples, for the rates.", min=0.1)] = 1.0,
    every: Annotated[bool, typer.Option("--all", help="Also show entities without messages and traffic.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Go on until Ctrl-C.")] = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Show counts, sizes, rates, locks, connections and the disk's times of a namespace of isthmus.

    The key needs Manage. With --watch and --json, one object per line.
    """
    from rich.console import Console

    from isthmus.cli.live import show_repeatedly
    from isthmus.operations.server.statistics import ask_statistics, rates

    target = target_of(connection, alias, federation, data, ca_file)
    before = ask_statistics(target)

    def read_statistics() -> dict[str, Any]:
        nonlocal before
        time.sleep(interval)
        after = ask_statistics(target)
        found, before = rates(before, after), after
        return found

    if not watch:
        found = read_statistics()
        if as_json:
            print(json.dumps(found))
        else:
            Console(soft_wrap=True).print(_stats_table(found, every=every))
        return
    if as_json:
        while True:
            print(json.dumps(read_statistics()), flush=True)
    show_repeatedly(lambda: _stats_table(read_statistics(), every=every))


_STATS_COLUMNS = (
    ("active", "active"), ("dead letters", "dead_letter"), ("scheduled", "scheduled"), ("deferred", "deferred"),
    ("transfer", "transfer"), ("locked", "locked"), ("bytes", "size_bytes"), ("in/s", "in_rate"), ("out/s", "out_rate"),
    ("settled/s", "settled_rate"), ("expired/s", "expired_rate"), ("dead-lettered/s", "dead_lettered_rate"),
    ("refused/s", "refused_rate"),
)  # fmt: skip


def _stats_table(found: dict[str, Any], *, every: bool) -> Any:
    from isthmus.supervisor.fitting_table import FittingTable

    whole = found["namespace"]
    groups = max(1, whole["commits"])
    title = (
        f"{whole['name']}: {'healthy' if whole['healthy'] else 'the disk refuses changes'}, up {whole['uptime_seconds']:.0f} s, "
        f"{whole['entities']} entities, {whole['connections']} connections, {whole['links']} links, "
        f"{whole['resident_bytes'] / 2**20:.0f} MiB resident, {whole['store_bytes'] / 2**20:.0f} MiB stored, "
        f"{whole['commit_operations'] / groups:.1f} operations and {1000 * whole['commit_seconds'] / groups:.1f} ms a commit"
    )
    table = FittingTable("entity", *(f">{heading}" for heading, _ in _STATS_COLUMNS), title=title, names=1)
    for row in found["entities"]:
        values = [row[name] for _, name in _STATS_COLUMNS]
        if every or any(values):
            table.add_row(row["entity"], *(f"{value:,.0f}" if value else "" for value in values))
    return table


def _backup(
    folder: Annotated[Path, typer.Argument(help="Folder to create; becomes a data folder to serve from.")],
    data: Annotated[Path, typer.Option(help="Data folder of the namespace.")],
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Copy a namespace of this machine, running or stopped, to a folder.

    Everything acknowledged before the call is in it. To restore, serve from a copy of the folder.
    """
    from isthmus.operations.server.backup import make_backup

    began = time.monotonic()
    running = make_backup(data, folder)
    seconds = time.monotonic() - began
    if as_json:
        print(json.dumps({"folder": str(folder), "running": running, "seconds": round(seconds, 3)}))
    else:
        print(f"{data} is backed up to {folder}, {'while it runs' if running else 'stopped'}, in {seconds:.1f} s")
