"""A namespace in three zones: one of the disks is written over, removed, filled, or answers with errors, and clients notice
nothing. Nothing is lost either where the namespace is killed meanwhile and starts with any two of the three.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceiveMode

from harness.client.fault_client import connected, make_message
from isthmus.errors import IsthmusError
from isthmus.operations.server.health import ask_health
from isthmus.testing.namespace import NamespaceProcess, namespace
from isthmus.transport import Sender

pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")

CONFIG = """
queues:
  orders: {}
  kept: {}
  large: {max_message_size_in_kilobytes: 8192}
  spread: {enable_partitioning: true}
"""
LONG_SECONDS = 180.0
STORES = 1 + 4  # of a zone: that of the namespace, and those of fragments


class Traffic:
    """Messages sent and received one after the other, in two threads, with the SDK's retries off.

    Attributes:
        sent: acknowledged to the sender.
        received: completed.
        failures: the errors that either got.
    """

    def __init__(self, connection_string: str) -> None:
        self.sent: list[str] = []
        self.received: list[str] = []
        self.failures: list[str] = []
        self._connection_string = connection_string
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._guard, args=(run,)) for run in (self._send, self._receive)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(LONG_SECONDS)

    def more(self, count: int = 30) -> None:
        """Wait until so many more were sent and received."""
        sent, received = len(self.sent) + count, len(self.received) + count
        until(lambda: self.failures or (len(self.sent) >= sent and len(self.received) >= received))

    def _guard(self, run: Callable[[], None]) -> None:
        try:
            run()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is a failed operation
            self.failures.append(repr(error))

    def _send(self) -> None:
        client = ServiceBusClient.from_connection_string(self._connection_string, retry_total=0)
        with client, client.get_queue_sender("orders") as orders, client.get_queue_sender("kept") as kept:
            while not self._ended.is_set():
                name = f"m{len(self.sent):06}"
                orders.send_messages(ServiceBusMessage(name))
                kept.send_messages(ServiceBusMessage(name))
                self.sent.append(name)

    def _receive(self) -> None:
        client = ServiceBusClient.from_connection_string(self._connection_string, retry_total=0)
        with client, client.get_queue_receiver("orders") as receiver:
            while not self._ended.is_set() or len(self.received) < len(self.sent):
                for message in receiver.receive_messages(max_message_count=20, max_wait_time=2):
                    receiver.complete_message(message)
                    self.received.append(str(message))


def until(condition: Callable[[], object]) -> None:
    limit = time.monotonic() + LONG_SECONDS
    while not condition():
        assert time.monotonic() < limit, "it never came"
        time.sleep(0.05)


def down(ns: NamespaceProcess) -> tuple[int, ...]:
    health = ask_health(ns.data, 60.0)
    assert health.is_ready, health
    return health.zones_down


def overwrite(folder: Path) -> None:
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            size = max(1, path.stat().st_size)
            subprocess.run(
                ["dd", "if=/dev/urandom", f"of={path}", f"bs={size}", "count=1", "conv=notrunc", "status=none"],
                check=True,
            )


def remove(folder: Path) -> None:
    """As `rm -rf`; what the namespace creates there again meanwhile may stay."""
    shutil.rmtree(folder, ignore_errors=True)


def metric(ns: NamespaceProcess, name: str, zone: int) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{ns.ports['http']}/metrics", timeout=60) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith(f'isthmus_namespace_zone_{name}{{zone="{zone}"}} '):
                return float(line.rpartition(" ")[2])
    raise AssertionError(f"no such line: {name}")


def back(ns: NamespaceProcess, zone: int, *, whole: bool = False) -> None:
    """Wait until a zone is back; a whole one with all stores and the bodies of large messages: what is not used is looked at once a second."""
    log = ns.data / "log.txt"
    bodies = f"zone {zone} takes bodies of large messages again"
    stores = STORES if whole else 1
    until(lambda: metric(ns, "resilvers_total", zone) >= stores and not down(ns))
    until(lambda: not whole or bodies in log.read_text())


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A disk of 64 MiB; where none can be mounted, a folder of the disk that there is."""
    folder.mkdir(parents=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64m,mode=0700", "tmpfs", str(folder)], capture_output=True, check=False
    )
    try:
        yield folder
    finally:
        if mounted.returncode == 0:
            subprocess.run(["umount", "-l", str(folder)], check=False)


def fill(folder: Path) -> Path | None:
    """Leave no room on the folder's disk; None where that is the machine's own."""
    if folder.stat().st_dev == folder.parent.stat().st_dev:
        return None
    filler = folder / "filler"
    with filler.open("wb") as file:
        try:
            while True:
                file.write(bytes(1 << 16))
                file.flush()
        except OSError:
            pass
    return filler


def kept(ns: NamespaceProcess) -> list[str]:
    """The contents of the queue without a receiver."""
    found: list[str] = []
    client = ServiceBusClient.from_connection_string(ns.connection_string)
    with client, client.get_queue_receiver("kept") as receiver:
        number = 1
        while messages := receiver.peek_messages(500, sequence_number=number):
            found += [str(message) for message in messages]
            number = (messages[-1].sequence_number or 0) + 1
    return found


@pytest.mark.soak  # a busy disk that lags counts as a second failed one
def test_a_disk_that_is_overwritten_removed_or_full_is_noticed_by_no_client(
    tmp_path: Path, counted: Callable[[str, str], None]
) -> None:
    with small_disk(tmp_path / "small") as small:
        zones = [tmp_path / "first", tmp_path / "second", small / "third"]
        arguments = [word for zone in zones for word in ("--zone", str(zone))]
        with namespace(tmp_path / "data", config=CONFIG, arguments=arguments) as ns:
            large = os.urandom(3 << 20)
            client = ServiceBusClient.from_connection_string(ns.connection_string, retry_total=0)
            with client, client.get_queue_sender("large") as sender, client.get_queue_sender("spread") as spread:
                sender.send_messages(ServiceBusMessage(large))
                spread.send_messages([ServiceBusMessage(str(number)) for number in range(100)])
            with Traffic(ns.connection_string) as traffic:
                traffic.more()
                overwrite(zones[0])
                traffic.more()
                back(ns, 1, whole=True)
                remove(zones[1])
                traffic.more()
                back(ns, 2, whole=True)
                filler = fill(small)
                faults = "one overwritten, one removed" + (", one filled" if filler is not None else "")
                if filler is not None:
                    until(lambda: traffic.failures or metric(ns, "in_service", 3) == 0)
                    traffic.more()
                    assert down(ns) == (3,)
                    filler.unlink()
                    back(ns, 3)
                traffic.more()
            lost = len(set(traffic.sent) - set(traffic.received))
            counted(
                f"zones: {faults}",
                f"{len(traffic.sent)} sends of two messages, {len(traffic.received)} received, {len(traffic.failures)} operations failed, {lost} lost",
            )
            assert traffic.failures == []
            assert sorted(traffic.received) == traffic.sent
            until(lambda: not down(ns))
            assert metric(ns, "drops_total", 1) >= 1
            ns.kill()
            shutil.rmtree(ns.data / "certificate")
            (ns.data / "keys.json").unlink()
            shutil.rmtree(zones[2])
            overwrite(zones[0])
            with pytest.raises(Exception, match="2 are needed"):
                ns.start()
            shutil.rmtree(zones[0])
            shutil.copytree(zones[1], zones[0])
            ns.start()
            assert kept(ns) == traffic.sent
            client = ServiceBusClient.from_connection_string(ns.connection_string)
            mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
            with client, client.get_queue_receiver("large", receive_mode=mode) as receiver:
                (message,) = receiver.receive_messages(max_wait_time=60)
                assert b"".join(message.body) == large
            with client, client.get_queue_receiver("spread", receive_mode=mode) as receiver:
                found: list[str] = []
                while len(found) < 100 and (messages := receiver.receive_messages(100, max_wait_time=60)):
                    found += [str(each) for each in messages]
            assert sorted(found) == sorted(map(str, range(100)))


@pytest.mark.parametrize(
    ("fault", "away"),
    [
        pytest.param(overwrite, 0, id="first overwritten", marks=pytest.mark.soak),
        pytest.param(remove, 1, id="second removed", marks=pytest.mark.soak),
        pytest.param(remove, 2, id="third removed"),
    ],
)
def test_killed_during_the_fault_it_starts_with_any_two(
    tmp_path: Path, fault: Callable[[Path], None], away: int, counted: Callable[[str, str], None]
) -> None:
    zones = [tmp_path / name for name in "abc"]
    arguments = [word for zone in zones for word in ("--zone", str(zone))]
    with namespace(tmp_path / "data", config=CONFIG, arguments=arguments) as ns:
        acknowledged: list[str] = []

        def send() -> None:
            # Not the SDK's sender: it leaves a socket open when its connection is lost.
            with suppress(IsthmusError), connected(ns, "kept") as client:
                sender = Sender(client, "kept").wait_ready()
                while True:
                    name = f"m{len(acknowledged):06}"
                    sender.send_all([make_message(name.encode())])
                    acknowledged.append(name)

        thread = threading.Thread(target=send)
        thread.start()
        until(lambda: len(acknowledged) >= 40)
        fault(zones[away])
        goal = len(acknowledged) + 5 * away
        until(lambda: len(acknowledged) >= goal)
        ns.kill()
        thread.join(LONG_SECONDS)
        ns.start()
        found = kept(ns)
        lost = len(set(acknowledged) - set(found))
        counted(f"zones: {fault.__name__} and kill -9", f"{len(acknowledged)} messages acknowledged, {lost} lost")
        assert found[: len(acknowledged)] == acknowledged
        assert len(found) <= len(acknowledged) + 1
        until(lambda: not down(ns))
        ns.kill()
        shutil.rmtree(zones[(away + 1) % 3])
        ns.start()
        assert kept(ns) == found
