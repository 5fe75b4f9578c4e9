"""`isthmus pause` and `isthmus resume` while a run moves messages, and over a run that is killed."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from isthmus.supervisor.status import read_status
from isthmus.testing.federation import FederationProcess, RunProcess

pytestmark = pytest.mark.spark

MESSAGES = 200
LONG_SECONDS = 240.0
COMMAND = "from isthmus.cli.app import main; main()"


def reported(verb: str, federation: FederationProcess) -> str:
    command = [sys.executable, "-c", COMMAND, verb, str(federation.file), "flights", "--state", str(federation.state)]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


def test_a_paused_task_takes_in_nothing_until_it_is_resumed(tmp_path: Path) -> None:
    with FederationProcess(tmp_path, ("ewr", "jfk")) as federation:
        run = federation.run("--json", "--retry-first", "1")
        run.wait_phase(("waiting", "moving"))
        # Spark runs in the virtual machine that was launched before it was known how many slots the run needs.
        children = psutil.Process(run.pid).children()
        assert [each.name() for each in children if "spark.master=local[1]" in each.cmdline()] == ["java"]
        federation.publish("ewr", MESSAGES)
        assert f"the run by process {run.pid}" in reported("pause", federation)
        run.wait_phase(("paused",))
        readers = workers(run)
        federation.publish("jfk", MESSAGES)
        waiting = federation.backlog()
        assert waiting >= MESSAGES
        assert is_well(federation)

        assert "continues" in reported("resume", federation)
        federation.wait_moved()
        told_within(120.0, lambda: workers(run) == readers)
        assert workers(run) == readers  # the lease has continued all the while

        reported("pause", federation)
        run.wait_phase(("paused",))
        federation.publish("ewr", MESSAGES)
        run.end(signal.SIGKILL)
        run = federation.run("--json", "--retry-first", "1")
        run.wait_phase(("paused",))
        assert federation.backlog() == MESSAGES
        reported("resume", federation)
        federation.wait_moved()
        assert run.end(signal.SIGINT) == 0, run.log()[-3000:]
        result = federation.verify().to_dict()
        assert result["clean"], result
        assert (result["entered"], result["arrived"]) == (3 * MESSAGES, 3 * MESSAGES)


def is_well(federation: FederationProcess) -> bool:
    document = read_status(federation.state)
    assert document is not None
    return all(route["well"] and route["state"].startswith("paused since") for route in document["routes"])


def told_within(seconds: float, condition: Callable[[], object]) -> None:
    """A run reports its processes once a second, and of a route that is resumed a moment later."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.1)


def workers(run: RunProcess) -> set[int]:
    """The Python workers that carry the lease."""
    document = read_status(run.state)
    assert document is not None
    carriers = {pid for route in document["routes"] for pid in route["processes"]}
    return {pid for pid in carriers if psutil.pid_exists(pid)}
