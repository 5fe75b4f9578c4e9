"""A namespace in a process of its own, for a measurement.

What it is: `isthmus namespace serve` started as an operator would, on free ports, with the entities of one measurement,
ended when the block ends. What it knows of the namespace is what that command prints.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from isthmus.errors import IsthmusError

__all__ = ["Served", "serve"]

_STOP_TIMEOUT_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Served:
    """A namespace that serves.

    Attributes:
        connection_string: for data.
        admin_connection_string: for the administration client.
        ports: by protocol: `amqp`, `tls`, `http`.
        process_id: of the serving process.
        ready_seconds: from the start of the process to its being ready.
    """

    connection_string: str
    admin_connection_string: str
    ports: dict[str, int]
    process_id: int
    ready_seconds: float


@contextmanager
def serve(folder: Path, queues: Sequence[str]) -> Iterator[Served]:
    """Serve a namespace from `folder` with these queues until the block ends.

    Raises:
        IsthmusError: if the namespace does not come up; with the end of its output.
    """
    folder.mkdir(parents=True, exist_ok=True)
    configuration = folder / "entities.json"
    configuration.write_text(json.dumps(_emulator_layout(queues)))
    log = folder / "namespace.log"
    command = [sys.executable, "-m", "isthmus", "namespace", "serve", "--json"]
    command += ["--data", str(folder / "data"), "--config", str(configuration)]
    command += ["--port", "0", "--tls-port", "0", "--http-port", "0"]
    started = time.monotonic()
    with log.open("wb") as errors:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line.strip():
            process.wait(_STOP_TIMEOUT_SECONDS)
            tail = log.read_text(errors="replace")[-2000:]
            raise IsthmusError(f"the namespace did not start (exit code {process.returncode}): {tail}")
        told = json.loads(line)
        yield Served(
            connection_string=told["connection_string"],
            admin_connection_string=told["admin_connection_string"],
            ports=told["ports"],
            process_id=process.pid,
            ready_seconds=time.monotonic() - started,
        )
    finally:
        process.terminate()
        try:
            process.wait(_STOP_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _emulator_layout(queues: Sequence[str]) -> dict[str, object]:
    """The entities in the layout of the Service Bus emulator's configuration file."""
    properties = {"LockDuration": "PT5M", "MaxDeliveryCount": 10, "DefaultMessageTimeToLive": "P14D"}
    named = [{"Name": queue, "Properties": properties} for queue in queues]
    return {"UserConfig": {"Namespaces": [{"Name": "bench", "Queues": named, "Topics": []}]}}
