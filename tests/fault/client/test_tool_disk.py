"""What the verbs of a namespace print and leave on a disk that is full or read-only."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.client.fault_client import connected, look, make_message
from isthmus.testing.namespace import NamespaceProcess, NamespaceStartError, namespace
from isthmus.transport import Sender

CONFIG = "queues: {source: {}, target: {}}"
COUNT = 1500
BODY = b"x" * 4000


class Disk:
    """A file system of its own, of a few megabytes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run("mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder))

    def run(self, *arguments: str) -> None:
        if subprocess.run(arguments, capture_output=True, check=False).returncode:
            pytest.skip("mounting a file system takes rights that this user lacks")

    def fill(self) -> Path:
        balloon = self.folder / "balloon"
        with balloon.open("wb") as file:
            status = os.statvfs(self.folder)
            os.posix_fallocate(file.fileno(), 0, status.f_bavail * status.f_frsize)
        return balloon

    def remount(self, mode: str) -> None:
        self.run("mount", "-o", f"remount,{mode}", str(self.folder))


@pytest.fixture
def disk() -> Iterator[Disk]:
    with tempfile.TemporaryDirectory() as folder:
        made = Disk(Path(folder))
        try:
            yield made
        finally:
            subprocess.run(["umount", "-l", folder], check=False)


@pytest.fixture(scope="module")
def ns() -> Iterator[NamespaceProcess]:
    with namespace(config=CONFIG) as running:
        with connected(running, "source") as client:
            messages = [make_message(BODY + b"%d" % number) for number in range(COUNT)]
            Sender(client, "source").wait_ready().send_all(messages, batch=50)
        yield running


def run(ns: NamespaceProcess, *arguments: str) -> tuple[int, dict[str, Any]]:
    """A verb's exit code and JSON; never a traceback."""
    command = [sys.executable, "-m", "isthmus", "namespace", *arguments, "--json"]
    environment = {**os.environ, "ISTHMUS_CONNECTION": ns.connection_string}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=environment)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, json.loads(done.stdout.splitlines()[-1])


def count(ns: NamespaceProcess, path: str) -> int:
    with connected(ns, path) as client:
        return sum(1 for _ in look(client, path))


@pytest.mark.parametrize("how", ["full", "read-only"])
def test_an_export_that_cannot_be_written_removes_nothing(ns: NamespaceProcess, disk: Disk, how: str) -> None:
    if how == "read-only":
        disk.remount("ro")
    code, answer = run(ns, "export", "source", str(disk.folder / "file"), "--remove")
    assert code == (1 if how == "full" else 2)  # a file that cannot be made is an argument's fault
    assert ("No space left" if how == "full" else "Read-only") in answer["error"]["message"]
    assert list(disk.folder.iterdir()) == []
    assert count(ns, "source") == COUNT


def test_an_import_whose_note_cannot_be_written_sends_nothing(ns: NamespaceProcess, disk: Disk, tmp_path: Path) -> None:
    file = disk.folder / "file"
    assert run(ns, "export", "source", str(file), "--max", "20")[0] == 0
    disk.remount("ro")
    for _ in range(2):
        code, answer = run(ns, "import", str(file), "target")
        assert code == 1
        assert "file.progress" in answer["error"]["message"]
        assert count(ns, "target") == 0
    disk.remount("rw")
    balloon = disk.fill()
    code, answer = run(ns, "import", str(file), "target")
    assert code == 1
    assert count(ns, "target") == 0
    balloon.unlink()
    assert run(ns, "import", str(file), "target")[1]["sent"] == 20
    assert count(ns, "target") == 20
    assert run(ns, "purge", "target", "--yes")[1]["removed"] == 20


@pytest.mark.parametrize("how", ["full", "read-only"])
def test_a_back_up_that_cannot_be_written_leaves_nothing_of_its_name(
    ns: NamespaceProcess, disk: Disk, how: str
) -> None:
    if how == "full":
        disk.fill()
    else:
        disk.remount("ro")
    code, answer = run(ns, "backup", str(disk.folder / "copy"), "--data", str(ns.data))
    assert code in (1, 2)
    assert "copy" in answer["error"]["message"]
    assert not (disk.folder / "copy").exists()
    assert count(ns, "source") == COUNT


def test_a_namespace_on_a_read_only_disk_is_refused_at_its_start(disk: Disk) -> None:
    data = disk.folder / "data"
    data.mkdir(mode=0o700)
    disk.remount("ro")
    command = [
        sys.executable,
        "-m",
        "isthmus",
        "namespace",
        "serve",
        "--data",
        str(data),
        "--port",
        "0",
        "--tls-port",
        "0",
    ]
    done = subprocess.run([*command, "--http-port", "0"], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode in (1, 2)
    assert "Read-only" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_table_that_was_removed_while_the_namespace_ran_is_reported_at_the_next_start(tmp_path: Path) -> None:
    with namespace(tmp_path / "data", config=CONFIG) as running:
        with connected(running, "source") as client:
            Sender(client, "source").wait_ready().send_all([make_message(BODY)] * 100)
        running.restart()
        tables = list((running.data / "store").glob("*.sst"))
        assert tables
        running.kill()
        for table in tables:
            table.unlink()
        with pytest.raises(NamespaceStartError, match=r"is damaged: .*Restore a back-up"):
            running.start()
