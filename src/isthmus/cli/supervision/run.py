"""`isthmus run`: moves the messages of a federation's routes."""

from __future__ import annotations

import json
import logging
import signal
import sys
import threading
from pathlib import Path
from typing import Annotated, Any, Self

import typer
from rich.console import Console
from rich.live import Live

from isthmus.cli.candidate import tasks
from isthmus.cli.hang_up import HangUp
from isthmus.errors import ConfigError, Fault, InvalidArgumentError
from isthmus.extra import require
from isthmus.topology.file.name import DEFAULT_FILE
from isthmus.topology.file.setting import SettingError
from isthmus.topology.file.source import load
from isthmus.topology.spark import parse_master

__all__ = ["register"]

_COUNTS = ("moved", "dead_lettered", "diverted", "discarded", "dropped")


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("run")(run)


def run(
    file: Annotated[str, typer.Argument(help="The federation file.")] = DEFAULT_FILE,
    task: Annotated[
        str, typer.Option(help="Run this task only; concurrent runs need a --state each.", autocompletion=tasks)
    ] = "",
    available_now: Annotated[
        bool, typer.Option("--available-now", help="End when the messages that waited at the start have been moved.")
    ] = False,
    state: Annotated[
        Path | None, typer.Option(help="Folder for checkpoints and status; by default .isthmus/NAME beside the file.")
    ] = None,
    retry_first: Annotated[
        float, typer.Option(help="Seconds before the first retry of a failed route.", min=0.1)
    ] = 5.0,
    retry_limit: Annotated[
        float, typer.Option(help="The longest delay in seconds; it doubles each time.", min=0.1)
    ] = 300.0,
    lease: Annotated[float, typer.Option(help="Duration of a lease in seconds; 0: the default.", min=0.0)] = 0.0,
    master: Annotated[
        str,
        typer.Option(
            help="Spark's master, e.g. spark://host:7077; by default the file's, else this machine. See docs/how-to/run-on-a-cluster.md."
        ),
    ] = "",
    new_spools: Annotated[
        bool,
        typer.Option(
            "--new-spools",
            help="Make deleted spools and tables again. Without it a route waits until they are back: they may not be mounted.",
        ),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a line for each change of a route's state, and one for the end.")
    ] = False,
) -> None:
    """Move messages until Ctrl-C, which lets every route finish its messages in flight. A failed route is retried.

    SIGTERM and the closing of its terminal end it like Ctrl-C; under nohup it continues without one.
    """
    require("spark", "isthmus run")
    from isthmus.replication.spark.early_java import launch_early
    from isthmus.topology.file.name import state_folder

    federation = load(file)
    if not federation.tasks:
        raise InvalidArgumentError(f"{file} has no tasks; write tasks:, or use isthmus pair run for its pairs")
    folder, master = state or state_folder(file), _checked_master(master)
    stop = threading.Event()
    _handle_signals(stop)
    hang_up = HangUp(stop.set)
    with launch_early(folder, federation.spark.at(master).options()) as early:
        # The imports of this take as long as the launch.
        from isthmus.supervisor.run import RunOptions, run_federation
        from isthmus.supervisor.supervisor import Settings

        settings = Settings(
            retry_first_seconds=retry_first, retry_limit_seconds=retry_limit, available_now=available_now
        )
        options = RunOptions(
            folder, task=task, settings=settings, lease_seconds=lease, master=master, new_spools=new_spools
        )

        def started() -> None:
            _handle_signals(stop)
            hang_up.listen()

        show = _Lines(as_json=as_json) if as_json or not sys.stdout.isatty() else _Screen()
        with show:
            _log_to_stderr()
            ended_well = run_federation(federation, options, stop, on_status=show, on_started=started, early=early)
    if not ended_well:
        raise typer.Exit(1)


def _checked_master(text: str) -> str:
    try:
        return parse_master(text) if text else ""
    except SettingError as wrong:
        raise ConfigError([Fault(f"--master: {wrong.message}", wrong.hint)]) from None


def _handle_signals(stop: threading.Event) -> None:
    """Ctrl-C and SIGTERM request a clean end."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())


def _log_to_stderr() -> None:
    """With time and level, and without the messages of Spark's bridge to Java about each call that the end aborted."""
    logging.basicConfig(
        level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s", datefmt="%Y-%m-%dT%H:%M:%S%z"
    )
    logging.getLogger("isthmus").setLevel(logging.INFO)
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    # A call in progress when Java ended is logged at the root logger itself.
    logging.getLogger().addFilter(lambda record: record.module != "java_gateway")


class _Screen:
    """A table that is updated on the terminal."""

    def __init__(self) -> None:
        self._live = Live(console=Console(), refresh_per_second=4)

    def __enter__(self) -> Self:
        self._live.start()
        self._live.update("starting Spark")
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def __call__(self, document: dict[str, Any]) -> None:
        from rich.console import Group

        from isthmus.supervisor.display import fill_lines, route_table

        memory = f"{document['processes']} processes, {document['memory_bytes'] / 1048576:,.0f} MiB"
        table = route_table(document["routes"], f"{document['state']} · {memory}")
        self._live.update(Group(table, *fill_lines(document.get("fill", ()))))


class _Lines:
    """A line whenever a route's state changes."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._phases: dict[str, str] = {}
        self._is_refused = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to clean up."""

    def __call__(self, document: dict[str, Any]) -> None:
        for route in document["routes"]:
            if self._phases.get(route["name"]) != route["phase"]:
                self._phases[route["name"]] = route["phase"]
                self._print_change(route)
        if document["state"] == "ended":
            counts = {name: sum(route.get(name, 0) for route in document["routes"]) for name in _COUNTS}
            if self._as_json:
                self._print(json.dumps({"state": "ended", **counts, "routes": document["routes"]}))
            else:
                self._print(f"ended: {_counted(counts)}")

    def _print_change(self, route: dict[str, Any]) -> None:
        if self._as_json:
            shown = {name: route[name] for name in ("name", "phase", "state", *_COUNTS, "last_error") if name in route}
            self._print(json.dumps({"route": shown}))
        else:
            error = f" ({route['last_error']})" if route["phase"] == "failed" else ""
            self._print(f"{route['name']}: {route['state']}{error}, {_counted(route)}")

    def _print(self, line: str) -> None:
        """Print a line. A full disk under standard output does not end a run; a closed standard output does."""
        try:
            print(line, flush=True)
        except BrokenPipeError:
            raise
        except OSError as error:
            if not self._is_refused:
                logging.getLogger("isthmus").warning("standard output refuses lines: %s", error.strerror or error)
            self._is_refused = True
        else:
            self._is_refused = False


def _counted(counts: dict[str, Any]) -> str:
    """The counts of messages: `1000 moved, 2 dead-lettered`."""
    words = [f"{counts['moved']} moved"]
    words += [f"{counts[name]} {name.replace('_', '-')}" for name in _COUNTS[1:] if counts.get(name)]
    return ", ".join(words)
