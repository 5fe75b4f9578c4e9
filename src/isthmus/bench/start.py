"""How long `isthmus run` takes until all routes of a federation carry messages.

What it is: namespaces on this machine, an all-active topic between them, one waiting message at each, and the time from the start of the
process to the arrival of every message at every member. What it is not: the rate afterwards.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from isthmus.bench.counter import Counter
from isthmus.bench.latency import START_SECONDS, spark_usage
from isthmus.bench.load import pace
from isthmus.bench.process import Account
from isthmus.connectors.administration import Administrations
from isthmus.errors import IsthmusError, OperationTimeoutError
from isthmus.testing.namespace import NamespaceProcess
from isthmus.topology import plan
from isthmus.topology.file.source import load

__all__ = ["measure_start"]

_TOPIC, _SUBSCRIPTION = "bench", "arrived"
_LOOK_SECONDS = 0.05
_END_SECONDS = 60.0
_MAIN = "from isthmus.cli.app import main; main()"


def measure_start(folder: Path, members: int = 3) -> dict[str, object]:
    """The seconds from the start of `isthmus run` until the first route, and until all, have carried a message.

    Args:
        folder: where namespaces and run keep their files.
        members: of the all-active topic; each pair of them has two routes.

    Raises:
        OperationTimeoutError: not all messages arrived.
        IsthmusError: the run ended before, or something did not start.
    """
    with _members(folder, members) as namespaces:
        file = _federated(folder, namespaces)
        for member in namespaces.values():
            pace(member.connection_string, [_TOPIC], 1.0, 1.0)
        counters = [
            Counter(each.admin_connection_string, each.ports["http"], f"{_TOPIC}/Subscriptions/{_SUBSCRIPTION}")
            for each in namespaces.values()
        ]
        began = time.monotonic()
        with _run(folder, file) as run:
            account = Account({}, spark=run.pid)
            first_seconds = all_seconds = 0.0
            while not all_seconds:
                if run.poll() is not None:
                    raise IsthmusError(f"isthmus run ended with exit code {run.returncode}: {_tail(folder)}")
                arrived = sum(counter.read() for counter in counters) - members  # each has its own
                passed = time.monotonic() - began
                if arrived and not first_seconds:
                    first_seconds = passed
                if arrived == members * (members - 1):
                    all_seconds = passed
                elif passed > START_SECONDS:
                    raise OperationTimeoutError(f"{arrived} messages arrived in {START_SECONDS:g} s: {_tail(folder)}")
                time.sleep(_LOOK_SECONDS)
            usage = account.read()
        for counter in counters:
            counter.close()
    routes = members * (members - 1)
    return {
        "members": members,
        "routes": routes,
        "first_route_seconds": round(first_seconds, 1),
        "start_seconds": round(all_seconds, 1),
        **spark_usage(usage, {}, routes),
    }


@contextmanager
def _members(folder: Path, count: int) -> Iterator[Mapping[str, NamespaceProcess]]:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    namespaces = {f"member-{number}": NamespaceProcess(folder / f"member-{number}") for number in range(1, count + 1)}
    with ThreadPoolExecutor(4) as pool:
        try:
            list(pool.map(NamespaceProcess.start, namespaces.values()))
            yield namespaces
        finally:
            list(pool.map(NamespaceProcess.stop, namespaces.values()))


def _federated(folder: Path, namespaces: Mapping[str, NamespaceProcess]) -> Path:
    """The file of the federation, which is applied."""
    lines = ["isthmus: 1", "namespaces:"]
    for alias, namespace in namespaces.items():
        connection = folder / f"{alias}.connection"
        connection.touch(0o600)
        connection.write_text(namespace.connection_string, encoding="utf-8")
        authority = namespace.ca_file.relative_to(folder)
        lines.append(f'  {alias}: {{connection: "file:{connection.name}", ca_file: {authority}}}')
    lines += ["tasks:", f"  {_TOPIC}:", "    pattern: all-active", f"    topic: {_TOPIC}"]
    lines += [f"    members: [{', '.join(namespaces)}]", f"    subscriptions: [{_SUBSCRIPTION}]"]
    file = folder / "isthmus.yaml"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    federation = load(file)
    with Administrations(federation) as administrations:
        applied = administrations.apply(plan(federation, administrations.observe()))
    if applied.error is not None:
        raise applied.error
    return file


@contextmanager
def _run(folder: Path, file: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", _MAIN, "run", str(file), "--state", str(folder / "run"), "--json"]
    with (folder / "run.log").open("wb") as log:
        run = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True, env={**os.environ}
        )
    try:
        yield run
    finally:
        if run.poll() is None:
            run.send_signal(signal.SIGINT)
        try:
            run.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            run.kill()
            run.wait()


def _tail(folder: Path) -> str:
    lines = (folder / "run.log").read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return " | ".join(lines[-5:]) or "it wrote nothing"
