"""Who may read what a namespace writes, whatever the umask that it was started with."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from isthmus.testing.namespace import NamespaceStartError, namespace

CONFIG = """
queues:
  plain: {}
  spread: {enable_partitioning: true}
  large: {max_message_size_in_kilobytes: 10240}
"""
# The test's own.
OTHERS = {"log.txt", "config.yaml"}


@pytest.fixture(params=[0o022, 0o000])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def open_to_others(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): oct(stat.S_IMODE(path.stat().st_mode))
        for path in (folder, *folder.rglob("*"))
        if path.stat().st_mode & 0o077 and path.name not in OTHERS
    }


@pytest.mark.usefixtures("umask")
def test_all_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o755)
    with namespace(data, config=CONFIG) as ns:
        with ServiceBusClient.from_connection_string(ns.connection_string) as client:
            for queue, size in (("plain", 100), ("spread", 100), ("large", 3 << 20)):
                with client.get_queue_sender(queue) as sender:
                    sender.send_messages(ServiceBusMessage(b"x" * size))
        command = [sys.executable, "-m", "isthmus", "namespace", "backup", "--data", str(data)]
        subprocess.run([*command, str(tmp_path / "running")], check=True, capture_output=True)
        ns.restart()
        assert {"store", "fragments", "large", "keys.json", "certificate"} <= {each.name for each in data.iterdir()}
        assert not open_to_others(data)
        ns.stop()
        subprocess.run([*command, str(tmp_path / "stopped")], check=True, capture_output=True)
        for folder in (data, tmp_path / "running", tmp_path / "stopped"):
            assert not open_to_others(folder)


def test_a_folder_that_was_open_is_narrowed_with_all_that_it_holds(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with namespace(data, config=CONFIG) as ns:
        client = ServiceBusClient.from_connection_string(ns.connection_string)
        with client, client.get_queue_sender("large") as sender:
            sender.send_messages(ServiceBusMessage(b"x" * (3 << 20)))
        ns.stop()
        for path in (data, *data.rglob("*")):
            path.chmod(0o777 if path.is_dir() else 0o666)
        ns.start()
        left = {
            name for name in open_to_others(data) if Path(name).parts[0] in ("store", "fragments", "large", "keys.json")
        }
        assert not left
        assert stat.S_IMODE(data.stat().st_mode) == 0o700


def test_a_folder_that_is_shared_on_purpose_is_refused(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    with pytest.raises(NamespaceStartError, match=r"mode 1777.*name a folder inside it"), namespace(shared):
        pass
