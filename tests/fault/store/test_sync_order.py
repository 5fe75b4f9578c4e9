"""Under strace: no disposition leaves a namespace before the sync that covers its messages has returned (I1).

A kill cannot show this, since the page cache survives it; only the order of system calls can.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from isthmus.testing.namespace import NamespaceProcess, namespace

# accepted, or the fast form of it, as the broker writes it: disposition, role receiver.
ACCEPTED = re.compile(r"\\0S\\25.*\\0S\$", re.DOTALL)
CALL = re.compile(r"^(?P<pid>\d+)\s+(?P<time>\d+\.\d+)\s+(?P<rest>.*)$")


@pytest.fixture(scope="module")
def strace() -> str:
    found = shutil.which("strace")
    if found is None:
        if os.environ.get("CI"):
            pytest.fail("strace is missing: apt-get install strace")
        pytest.skip("strace is missing: apt-get install strace")
    return found


@dataclass
class Event:
    """A system call that began or returned."""

    at: float
    kind: str


@pytest.fixture
def traced(strace: str, tmp_path: Path) -> Iterator[tuple[NamespaceProcess, Path]]:
    trace = tmp_path / "trace.txt"
    with namespace(tmp_path / "data", config="queues: {orders: {}}") as running:
        command = [strace, "-f", "-ttt", "-s", "4096", "-e", "trace=fsync,fdatasync,sync_file_range,write,sendto,sendmsg,writev",
                   "-o", str(trace), "-p", str(running.pid)]  # fmt: skip
        tracer = subprocess.Popen(command, stderr=subprocess.PIPE)
        try:
            assert tracer.stderr is not None
            line = tracer.stderr.readline()
            if b"attached" not in line:
                pytest.fail(f"strace could not attach: {line!r}")
            yield running, trace
        finally:
            tracer.send_signal(signal.SIGINT)
            tracer.wait(10)
            tracer.stderr.close()


def read(trace: Path) -> Iterator[Event]:
    """Log writes, returns of syncs, and dispositions sent, in order."""
    syncing: set[str] = set()
    for line in trace.read_text(errors="replace").splitlines():
        call = CALL.match(line)
        if call is None:
            continue
        at, pid, rest = float(call["time"]), call["pid"], call["rest"]
        if rest.startswith(("fsync(", "fdatasync(")):
            if "<unfinished" in rest:
                syncing.add(pid)
            else:
                yield Event(at, "synced")
        elif "resumed>" in rest and pid in syncing and ("fsync" in rest or "fdatasync" in rest):
            syncing.discard(pid)
            yield Event(at, "synced")
        elif "body-of-a-message" in rest and rest.startswith("write("):
            yield Event(at, "logged")
        elif ACCEPTED.search(rest):
            yield Event(at, "accepted")


def test_no_disposition_leaves_before_its_sync_i1(traced: tuple[NamespaceProcess, Path]) -> None:
    running, trace = traced
    count = 20
    client = ServiceBusClient.from_connection_string(running.connection_string)
    with client, client.get_queue_sender("orders") as sender:
        for number in range(count):
            sender.send_messages(ServiceBusMessage(f"body-of-a-message {number}"))
    # strace logs a call once it has returned, which may be after the client has its answer.
    limit = time.monotonic() + 20
    while (accepted := accepted_in_order(trace)) < count and time.monotonic() < limit:
        time.sleep(0.1)
    assert sum(event.kind == "logged" for event in read(trace)) >= count, "the write-ahead log's writes were not seen"
    assert accepted >= count


def accepted_in_order(trace: Path) -> int:
    """How many dispositions left. One send is under way at a time: each is logged, synced, and only then accepted."""
    durable = pending = accepted = 0
    for kind in (event.kind for event in read(trace)):
        if kind == "logged":
            pending += 1
        elif kind == "synced":
            durable, pending = durable + pending, 0
        elif pending or durable:
            accepted += 1
            assert accepted <= durable, f"disposition {accepted} left when {durable} messages were durable"
    return accepted
