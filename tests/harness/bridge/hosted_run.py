"""The routes of a federation, carried by leases without Spark: readers and senders of the bridge in one process.

Run as `python -m harness.bridge.hosted_run FILE FOLDER`. Routes with the same steps share a lease, as they share a query in a run. Steps of DataFrames
need Spark and are refused. Spools are beside the folder, so that the next run finds them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from isthmus.bridge.host.reader.item import LeaseName
from isthmus.bridge.host.reader.reader import ReaderHost
from isthmus.bridge.host.sender.sender import SenderHost
from isthmus.bridge.route_spec import RouteSpec
from isthmus.bridge.spark.inflow import Inflow
from isthmus.bridge.spark.outflow import Outflow
from isthmus.bridge.spark.stage import open_stage
from isthmus.connectors.spool.folder import SpoolFolder
from isthmus.replication.route_spec import route_spec
from isthmus.replication.shuffle.start import is_spooled, route_specs, spool_folder
from isthmus.topology.file.source import load
from isthmus.topology.route import routes

__all__ = ["HostedRun"]

LEASE_SECONDS = 30.0
PADDING_BYTES = 2048
TESTS = Path(__file__).parents[2]
FLUSH_MS = 3.0
AGAIN_SECONDS = 1.0
JOIN_SECONDS = 20.0


class HostedRun:
    """The process, with what a fault needs of `isthmus.testing.federation.RunProcess`.

    Args:
        file: the federation file.
        folder: where readers and senders meet, and the log is; not there yet.
    """

    def __init__(self, file: Path, folder: Path) -> None:
        folder.mkdir()
        self._log = folder / "log.txt"
        command = [sys.executable, "-m", __name__, str(file), str(folder)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def is_alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    def log(self) -> str:
        """What it wrote."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def end(self, number: signal.Signals = signal.SIGINT) -> int:
        """Kill it, which is its only end; 0."""
        self._process.kill()
        self._process.wait()
        return 0


def carry(folder: Path, specs: Sequence[RouteSpec]) -> None:
    """One lease after the other, without end."""
    steps = specs[0].steps
    number = 0
    while True:
        number += 1
        channel = folder / str(number)
        name = LeaseName("q", number, 0)
        reader = ReaderHost(channel=channel, lease=name, control=None, routes=tuple(specs), lease_seconds=LEASE_SECONDS)
        sender = _logged(SenderHost(channel=channel)).start()
        inflow, stage = Inflow(sender), open_stage(steps)
        reader.start()
        try:
            batches = Outflow(reader, flush_ms=FLUSH_MS, padding_bytes=PADDING_BYTES).batches()
            for batch in batches if stage is None else filter(None, map(stage.take, batches)):
                inflow.take(batch)
            sender.finish()
        except Exception as error:  # noqa: BLE001 - the next lease moves what this one gave back
            sender.abort(error)
            print(f"lease {number} failed: {error!r}", flush=True)
            time.sleep(AGAIN_SECONDS)
        finally:
            reader.stop("the lease is over")
            reader.join(JOIN_SECONDS)


def _logged(sender: SenderHost) -> SenderHost:
    """A sender whose routes' pauses and failures are written to the log, as no driver gets the reports."""
    link: Any = sender._link
    for name in ("pause", "resume", "failed"):
        setattr(link, name, _print_and(name, getattr(link, name)))
    return sender


def _print_and(name: str, call: Callable[..., None]) -> Callable[..., None]:
    def logged(*arguments: Any) -> None:
        print(f"{time.strftime('%H:%M:%S')} {name} {arguments}", flush=True)
        call(*arguments)

    return logged


def main(file: Path, folder: Path) -> None:
    """Carry the routes of a file until killed."""
    federation = load(file).anchored(file.parent.absolute())
    groups: dict[tuple[str, ...], list[RouteSpec]] = {}
    for route in routes(federation):
        state = folder.parent / "state"
        spec = replace(route_spec(route, federation, state_folder=state), claim="")
        if is_spooled(route):
            SpoolFolder(spool_folder(route, state) / "in").make()  # as a run does before a route starts
        for each in route_specs(route, spec, spool_folder(route, state)):
            groups.setdefault(each.steps, []).append(each)
    for number, specs in enumerate(groups.values()):
        lease_folder = folder / f"g{number}"
        lease_folder.mkdir()
        threading.Thread(target=carry, args=(lease_folder, specs), daemon=True).start()
    while True:
        time.sleep(60.0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
