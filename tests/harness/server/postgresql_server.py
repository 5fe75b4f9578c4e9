"""A real PostgreSQL for the length of a test: the machine's own, or Debian's package unpacked into `.cache` without installing it.

Where there is neither, the tests are passed over, but not in CI. The server refuses to run as root: it then runs as `nobody`.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pg8000.dbapi
import pytest

__all__ = ["PostgresqlServer", "postgresql_server"]

CACHE = Path(__file__).parents[3] / ".cache" / "interop"
START_SECONDS = 60.0


def _missing(text: str) -> None:
    if os.environ.get("CI"):
        pytest.fail(text)
    pytest.skip(text)


def _programs() -> Path:
    """The folder of initdb and postgres."""
    for root in (Path("/usr/lib/postgresql"), CACHE / "postgresql" / "usr" / "lib" / "postgresql"):
        found = sorted(root.glob("*/bin/initdb"))
        if found:
            return found[-1].parent
    if (own := shutil.which("initdb")) is not None:
        return Path(own).resolve().parent
    folder = CACHE / "postgresql"
    folder.mkdir(parents=True, exist_ok=True)
    with (CACHE / "postgresql.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _unpack(folder)
    found = sorted((folder / "usr" / "lib" / "postgresql").glob("*/bin/initdb"))
    if not found:
        _missing("no PostgreSQL here, and none to be had by apt-get download: apt-get install postgresql")
    return found[-1].parent


def _unpack(folder: Path) -> None:
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        _missing("no PostgreSQL here: apt-get install postgresql")
    reported = subprocess.run(
        ["apt-cache", "depends", "postgresql"], capture_output=True, text=True, check=False
    ).stdout
    for package in {*re.findall(r"Depends: (postgresql-\d+)", reported), "libpq5"}:
        subprocess.run(["apt-get", "download", package], cwd=folder, check=False, capture_output=True)
    for file in folder.glob("*.deb"):
        subprocess.run(["dpkg", "-x", file.name, "."], cwd=folder, check=True)
        file.unlink()


class PostgresqlServer:
    """A server on a free port of this machine.

    Args:
        folder: of its data.
    """

    def __init__(self, folder: Path) -> None:
        self._programs = _programs()
        self._folder = folder
        self._user = "nobody" if os.geteuid() == 0 else None
        if self._user is not None:
            shutil.chown(folder, self._user)
        libraries = os.pathsep.join(map(str, self._programs.parents[3].glob("lib/*-linux-gnu*")))
        self._environment = {**os.environ, "LD_LIBRARY_PATH": libraries, "TZ": "UTC"}
        self._process: subprocess.Popen[bytes] | None = None
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        made = subprocess.run(
            [self._programs / "initdb", "-D", folder / "data", "-U", "app", "-A", "trust", "--no-sync", "-E", "UTF8"],
            user=self._user, env=self._environment, cwd=folder, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if made.returncode:
            _missing(f"PostgreSQL's initdb fails: {made.stderr[-500:]}")

    def start(self) -> None:
        """Start, and wait until it answers."""
        options = {"listen_addresses": "127.0.0.1", "port": self.port, "unix_socket_directories": self._folder}
        command = [str(self._programs / "postgres"), "-D", str(self._folder / "data")]
        with (self._folder / "log.txt").open("ab") as log:
            self._process = subprocess.Popen(
                [*command, *(part for name, value in options.items() for part in ("-c", f"{name}={value}"))],
                user=self._user, env=self._environment, cwd=self._folder, stdout=log, stderr=log,
            )  # fmt: skip
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                self.connect().close()
                return
            except Exception:  # noqa: BLE001 - not there yet
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise AssertionError((self._folder / "log.txt").read_text(errors="replace")[-2000:]) from None
                time.sleep(0.1)

    def connect(self) -> Any:
        """A connection of pg8000's."""
        return pg8000.dbapi.connect("app", host="127.0.0.1", port=self.port, database="postgres", timeout=30)

    def stop(self) -> None:
        """End it at once, as a crash would: it recovers at the next start."""
        if self._process is not None:
            self._process.send_signal(3)  # SIGQUIT: immediate shutdown
            self._process.wait(30)
            self._process = None


@contextmanager
def postgresql_server() -> Iterator[PostgresqlServer]:
    """A server that runs as long as the `with` block."""
    folder = Path(tempfile.mkdtemp(prefix="isthmus-postgresql-"))
    server = PostgresqlServer(folder)
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
