"""A real Azurite for tests: the emulator of Azure Storage, from npm, in .cache.

It is made to keep what it has answered over a kill (tests/interop/azurite/durable.cjs), as Azure does.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.client.sdk_program import CACHE, PROGRAMS, InstallError, install_packages

__all__ = ["ACCOUNT", "KEY", "AzuriteServer", "azurite", "install_azurite"]

# The account that Azurite serves by default, and its key: both are public.
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="

START_SECONDS = 180.0  # it reads what it has kept
STOP_SECONDS = 20.0
SERVICES = ("blob", "queue", "table")


def install_azurite() -> tuple[Path, Path]:
    """The program `node`, and the folder that Azurite is installed in. Where it cannot be had, the test is skipped, but not in CI."""
    folder = CACHE / "azurite"
    try:
        return install_packages(PROGRAMS / "azurite", folder), folder
    except InstallError as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(f"no Azurite here: {str(error).splitlines()[0]}")


class AzuriteServer:
    """Azurite's process.

    Args:
        data: the folder of its data.

    Attributes:
        ports: by service (`blob`, `queue`, `table`); kept over restarts.
    """

    def __init__(self, data: Path) -> None:
        self._node, self._folder = install_azurite()
        self._data = data
        self.ports = dict(zip(SERVICES, random.sample(range(10_000, 32_768), len(SERVICES)), strict=True))
        self._process: subprocess.Popen[bytes] | None = None

    def url(self, service: str) -> str:
        """Where a service is reached."""
        return f"http://127.0.0.1:{self.ports[service]}/{ACCOUNT}"

    @property
    def connection_string(self) -> str:
        """For all services."""
        ends = ";".join(f"{service.capitalize()}Endpoint={self.url(service)}" for service in SERVICES)
        return f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};{ends}"

    def start(self) -> None:
        """Starts it, and waits until it listens."""
        main = self._folder / "node_modules" / "azurite" / "dist" / "src" / "azurite.js"
        preload = PROGRAMS / "azurite" / "durable.cjs"
        ports = [f"--{service}Port={port}" for service, port in self.ports.items()]
        with (self._data / "azurite.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    str(self._node),
                    f"--require={preload}",
                    str(main),
                    *ports,
                    f"--location={self._data}",
                    "--silent",
                    "--skipApiVersionCheck",
                    "--disableTelemetry",
                    "--disableProductStyleUrl",
                ],
                env={**os.environ, "AZURITE_FOLDER": str(self._folder)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        limit = time.monotonic() + START_SECONDS
        for port in self.ports.values():
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    break
                except OSError:
                    text = (self._data / "azurite.log").read_text(errors="replace")
                    assert self._process.poll() is None, f"Azurite ended: {text}"
                    assert time.monotonic() < limit, f"Azurite does not listen on {port}: {text}"
                    time.sleep(0.05)

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """Ends it; with SIGKILL, at once."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def restart(self) -> None:
        """Kills it, and starts it again."""
        self.stop(signal.SIGKILL)
        self.start()


@contextmanager
def azurite(data: Path) -> Iterator[AzuriteServer]:
    """Azurite, with its data in a folder."""
    server = AzuriteServer(data)
    server.start()
    try:
        yield server
    finally:
        server.stop(signal.SIGKILL)
