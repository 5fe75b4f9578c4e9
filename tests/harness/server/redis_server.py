"""A real redis-server for tests: the machine's own, or Debian's package unpacked into `.cache` without installing it."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

_PACKAGES = (
    "redis-server",
    "redis-tools",
    "liblzf1",
    "libjemalloc2",
    "libhiredis0.14",
    "libatomic1",
    "liblua5.1-0",
    "lua-cjson",
    "lua-bitop",
)
_UNPACKED = Path(__file__).parents[3] / ".cache" / "redis"
_START_SECONDS = 30.0


@contextmanager
def redis_server(folder: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Address and process of a server that writes every change to the disk before it answers."""
    program, environment = _program()
    port = random.randrange(10_000, 32_768)
    process = subprocess.Popen(
        [
            program,
            "--port",
            str(port),
            "--bind",
            "127.0.0.1",
            "--dir",
            str(folder),
            "--save",
            "",
            "--appendonly",
            "yes",
            "--appendfsync",
            "always",
            "--requirepass",
            "secret",
        ],
        stdout=subprocess.DEVNULL,
        env=environment,
    )
    url = f"redis://:secret@127.0.0.1:{port}/0"
    try:
        limit = time.monotonic() + _START_SECONDS
        client = redis.Redis.from_url(url)
        while True:
            try:
                client.ping()
                break
            except redis.ConnectionError:
                assert process.poll() is None, "redis-server ended"
                assert time.monotonic() < limit, "redis-server does not answer"
                time.sleep(0.05)
        client.close()
        yield url, process
    finally:
        process.kill()
        process.wait()


def _program() -> tuple[str, dict[str, str]]:
    installed = shutil.which("redis-server")
    if installed:
        return installed, dict(os.environ)
    if not (_UNPACKED / "complete").exists():
        if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
            pytest.skip("no redis-server here: apt-get install redis-server")
        _UNPACKED.mkdir(parents=True, exist_ok=True)
        for package in _PACKAGES:
            subprocess.run(["apt-get", "download", package], cwd=_UNPACKED, check=False, capture_output=True)
        for file in _UNPACKED.glob("*.deb"):
            subprocess.run(["dpkg", "-x", file.name, "."], cwd=_UNPACKED, check=True)
        if not (_UNPACKED / "usr/bin/redis-server").exists():
            pytest.skip("no redis-server here, and none to be had by apt-get download: apt-get install redis-server")
        (_UNPACKED / "complete").touch()
    libraries = os.pathsep.join(str(each) for each in _UNPACKED.glob("usr/lib/*-linux-gnu*"))
    libraries += os.pathsep + os.pathsep.join(str(each) for each in _UNPACKED.glob("lib/*-linux-gnu*"))
    return str(_UNPACKED / "usr/bin/redis-server"), {**os.environ, "LD_LIBRARY_PATH": libraries}
