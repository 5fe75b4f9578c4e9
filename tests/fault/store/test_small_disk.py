"""A served namespace on a full disk: it refuses sends with an error, loses nothing that it acknowledged, and continues when
there is room again. A data folder belongs to one process.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from harness.client.fault_client import connected, look, make_message, works
from isthmus.errors import IsthmusError
from isthmus.testing.namespace import NamespaceProcess, namespace
from isthmus.transport import Sender

CONFIG = "queues: {orders: {}, normal: {}}"
DISK_BYTES = 160 << 20
LEFT_BYTES = 3 << 20
Fill = Callable[[NamespaceProcess], None]


@contextmanager
def small_disk() -> Iterator[tuple[Path, Fill, Fill]]:
    """A file system of its own, with a file that takes up nearly all of it or nothing."""
    with tempfile.TemporaryDirectory() as folder:
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", folder], capture_output=True, check=False
        )
        if mounted.returncode:
            pytest.skip("mounting a file system takes rights that this user lacks")
        balloon = Path(folder) / "balloon"

        def fill(ns: NamespaceProcess) -> None:
            free = os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize
            with balloon.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, free - LEFT_BYTES)

        try:
            yield Path(folder) / "data", fill, lambda ns: balloon.unlink()
        finally:
            subprocess.run(["umount", "-l", folder], check=False)


@contextmanager
def limited_files() -> Iterator[tuple[Path, Fill, Fill]]:
    """A limit for the size of the process's files, which can be set and lifted while it runs."""
    with tempfile.TemporaryDirectory() as folder:

        def fill(ns: NamespaceProcess) -> None:
            resource.prlimit(ns.pid, resource.RLIMIT_FSIZE, (LEFT_BYTES, resource.RLIM_INFINITY))

        def free(ns: NamespaceProcess) -> None:
            resource.prlimit(ns.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

        yield Path(folder) / "data", fill, free


@pytest.mark.parametrize("disk", [small_disk, limited_files])
def test_a_full_disk_refuses_and_loses_nothing(disk: Callable[[], Iterator[tuple[Path, Fill, Fill]]]) -> None:
    with disk() as (folder, fill, free), namespace(folder, config=CONFIG) as ns:
        acknowledged = send(ns, range(500))
        assert len(acknowledged) == 500
        fill(ns)
        acknowledged += send(ns, range(500, 20_000), until_refused=True)
        assert len(acknowledged) < 20_000
        for attempt in range(3):  # every send is answered, accepted or refused
            acknowledged += send(ns, [100_000 + attempt])
        numbers(ns)  # what is there can be looked at
        free(ns)
        wait_until_it_takes(ns)
        works(ns, "normal")
        assert set(acknowledged) <= set(numbers(ns))
        ns.kill()
        ns.start()
        found = numbers(ns)
        assert set(acknowledged) <= set(found)
        assert len(set(found)) == len(found)
        assert "Traceback" not in ns.log()
        assert "refused a write" in ns.log() or "could not be synced" in ns.log() or "disk is full" in ns.log()


def send(ns: NamespaceProcess, wanted: range | list[int], *, until_refused: bool = False) -> list[int]:
    """Sends one by one, many under way; the numbers that were acknowledged."""
    acknowledged: list[int] = []
    with connected(ns, "orders") as client:
        sender = Sender(client, "orders").wait_ready()
        todo = list(wanted)
        limit = time.monotonic() + 60
        refused = False
        while sender.settled < len(todo) and not (refused and sender.outstanding == 0):
            assert time.monotonic() < limit, "sends are neither accepted nor refused"
            if client.error is not None:
                raise client.error
            count = min(sender.sendable, len(todo) - sender.sent, 100 - sender.outstanding)
            if count > 0 and not refused:
                batch = todo[sender.sent : sender.sent + count]
                sender.send([make_message(b"%d" % each + bytes(2000), f"m{each}") for each in batch])
            client.wait(0.05)
            while sender.outcomes:
                first, last, error = sender.outcomes.popleft()
                if error is None:
                    acknowledged += todo[first : last + 1]
                else:
                    refused = refused or until_refused
    return acknowledged


def numbers(ns: NamespaceProcess) -> list[int]:
    with connected(ns, "orders") as client:
        return [int(seen.body.rstrip(b"\0")) for seen in look(client, "orders")]


def wait_until_it_takes(ns: NamespaceProcess) -> None:
    limit = time.monotonic() + 20
    while time.monotonic() < limit:
        with suppress(IsthmusError):
            if send(ns, [200_000]):
                return
        time.sleep(0.2)
    raise AssertionError(f"it takes no messages though there is room: {ns.log()[-1000:]}")


def test_a_second_process_on_the_same_data_is_refused(tmp_path: Path) -> None:
    with namespace(tmp_path / "data", config=CONFIG) as ns:
        command = [sys.executable, "-m", "isthmus", "namespace", "serve", "--data", str(ns.data)]
        ports = ["--port", "0", "--tls-port", "0", "--http-port", "0"]
        second = subprocess.run([*command, *ports], capture_output=True, text=True, timeout=60, check=False)
        assert second.returncode in (1, 2)
        assert "in use by another process" in second.stderr
        assert str(ns.data) in second.stderr
        assert "Traceback" not in second.stderr
        assert second.stdout == ""
        works(ns, "normal")
