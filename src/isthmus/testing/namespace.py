"""A real namespace for the length of a test.

What it is: starts `isthmus namespace serve` in a process of its own on free ports, gives the connection strings, and can
stop, kill and restart it on the same data and ports. What it is not: a fake; messages are durable.

    with namespace() as ns:
        client = ServiceBusClient.from_connection_string(ns.connection_string)
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen
from typing import Any

from isthmus.errors import IsthmusError
from isthmus.testing.port import free_ports

__all__ = ["NamespaceProcess", "NamespaceStartError", "namespace"]

_COMMAND = "from isthmus.cli.app import main; main()"
_START_SECONDS = 60.0
_PORT_ATTEMPTS = 5
_NAMES = ("amqp", "tls", "http")
_STOP_SECONDS = 60.0


class NamespaceStartError(IsthmusError):
    """The process ended, or did not report that it is ready; the text contains the end of its log."""

    code = "namespace-start"


class NamespaceProcess:
    """A namespace in a process of its own.

    Args:
        data: its data folder.
        config: a file of entities; None for none.
        arguments: further options of `isthmus namespace serve`.

    Attributes:
        connection_string: for data; plain AMQP, and HTTPS on the same port.
        admin_connection_string: for administration.
        ports: by name: ``amqp``, ``tls``, ``http``; kept over restarts.
        ca_file: the certificate that TLS clients have to trust.
        log_file: the standard error of the process.
    """

    def __init__(self, data: Path, *, config: Path | None = None, arguments: Sequence[str] = ()) -> None:
        self.data = data
        self.config = config
        self.arguments = tuple(arguments)
        self.connection_string = ""
        self.admin_connection_string = ""
        self.ports: dict[str, int] = dict.fromkeys(_NAMES, 0)
        self.ca_file = data / "certificate" / "ca.pem"
        self.log_file = data / "log.txt"
        self._process: Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Process id of the running namespace.

        Raises:
            NamespaceStartError: it does not run.
        """
        if self._process is None:
            raise NamespaceStartError("the namespace does not run")
        return self._process.pid

    def start(self) -> float:
        """Starts the process; returns the seconds until it was ready.

        Raises:
            NamespaceStartError: it ended, or was not ready within a minute.
        """
        self.data.mkdir(mode=0o700, parents=True, exist_ok=True)
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            began = time.monotonic()
            chooses = not any(self.ports.values())
            try:
                self._start(began, dict(zip(_NAMES, free_ports(3), strict=True)) if chooses else self.ports)
                break
            except NamespaceStartError as error:
                if not chooses or attempt == _PORT_ATTEMPTS or "already in use" not in str(error):
                    raise
        return time.monotonic() - began

    def _start(self, began: float, ports: dict[str, int]) -> None:
        command = [sys.executable, "-c", _COMMAND, "namespace", "serve", "--data", str(self.data), "--json"]
        for name, option in (("amqp", "--port"), ("tls", "--tls-port"), ("http", "--http-port")):
            if option not in self.arguments:
                command += [option, str(ports[name])]
        if self.config is not None:
            command += ["--config", str(self.config)]
        with self.log_file.open("ab") as log:
            self._process = Popen([*command, *self.arguments], stdout=subprocess.PIPE, stderr=log)
        described = self._read_ready(began + _START_SECONDS)
        self.connection_string = described["connection_string"]
        self.admin_connection_string = described["admin_connection_string"]
        self.ports = described["ports"]

    def stop(self) -> int:
        """Ends the process as an operator does (SIGTERM); returns its exit code. No error if it does not run."""
        return self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kills the process, like a power cut. No error if it does not run."""
        self._end(signal.SIGKILL)

    def restart(self) -> float:
        """Stops it, and starts it on the same data and ports; returns the seconds until it was ready again."""
        self.stop()
        return self.start()

    def log(self) -> str:
        """The standard error of the process."""
        return self.log_file.read_text(encoding="utf-8", errors="replace") if self.log_file.exists() else ""

    def _read_ready(self, deadline: float) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdout is not None
        output = self._process.stdout.fileno()
        waiting = select.poll()  # select() takes no descriptor above 1023, and a test may have many connections open
        waiting.register(output, select.POLLIN)
        line = b""
        while not line.endswith(b"\n"):
            readable = waiting.poll(1000 * max(0.0, deadline - time.monotonic()))
            chunk = os.read(output, 65536) if readable else b""
            if not chunk:
                self.kill()
                raise NamespaceStartError(f"the namespace did not start: {self.log()[-2000:]}")
            line += chunk
        described: dict[str, Any] = json.loads(line)
        if "error" in described:
            self.kill()
            raise NamespaceStartError(f"the namespace did not start: {described['error']['message']}")
        return described

    def _end(self, number: signal.Signals) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        if process.poll() is None:
            process.send_signal(number)
        try:
            code = process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        if process.stdout is not None:
            process.stdout.close()
        return code


@contextmanager
def namespace(
    data: Path | None = None, *, config: Path | str | None = None, arguments: Sequence[str] = ()
) -> Iterator[NamespaceProcess]:
    """A namespace for the length of the ``with`` block.

    Args:
        data: its data folder, which is kept; None for one that is removed at the end.
        config: a file of entities, or its text; None for none.
        arguments: further options of `isthmus namespace serve`.

    Yields:
        The running namespace.
    """
    folder = data if data is not None else Path(tempfile.mkdtemp(prefix="isthmus-namespace-"))
    if isinstance(config, str):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        text, config = config, folder / "config.yaml"
        config.write_text(text, encoding="utf-8")
    running = NamespaceProcess(folder, config=config, arguments=arguments)
    try:
        running.start()
        yield running
    finally:
        running.stop()
        if data is None:
            shutil.rmtree(folder, ignore_errors=True)
