"""A driver that is frozen keeps nothing moving beyond its claim, and does no harm when it continues.

The Java process and the Python workers of a frozen driver run on. The leases end by themselves before the claim can be taken
by another run (`isthmus.bridge.lease.fence`); the other run moves what waits; the one that was frozen finds its claim lost.

`make soak` runs it: it is about a minute of waiting for the claim beside two runs. `make test` has the fence in tests/unit/bridge/lease.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path

import psutil
import pytest

from harness.check.federation_check import check_moved
from isthmus.testing.federation import FederationProcess, RunProcess
from isthmus.topology.claim import CLAIM_LOCK_MS

pytestmark = [pytest.mark.spark, pytest.mark.soak]

MESSAGES = 1000
BODY_BYTES = 200
SETTINGS = ("lock_duration: 5s", "duplicate_detection: 1h")
# Leases outlast the claim: none ends for another reason.
RUN = ("--json", "--retry-first", "1", "--retry-limit", "5", "--lease", "120")
CLAIM_SECONDS = CLAIM_LOCK_MS / 1000


def test_no_two_leases_are_active_at_one_time(tmp_path: Path) -> None:
    with FederationProcess(tmp_path, ("ewr", "jfk"), SETTINGS) as federation:
        frozen = federation.run(*RUN)
        frozen.wait_phase(("waiting", "moving"))
        publish(federation)
        federation.wait_moved()
        publish(federation)
        stopped_at = time.monotonic()
        psutil.Process(frozen.pid).suspend()
        try:
            time.sleep(CLAIM_SECONDS)
            # No other run holds the claim before now. What comes from now on is the next run's.
            publish(federation)
            waiting = federation.backlog()
            time.sleep(2.0)
            assert federation.backlog() == waiting == len(federation.namespaces) * MESSAGES, (
                f"a lease moved messages {time.monotonic() - stopped_at:.0f} s after its driver was frozen"
            )
            owner = run_beside(federation)
            publish(federation)
            federation.wait_moved()
        finally:
            psutil.Process(frozen.pid).resume()
        publish(federation)
        check_moved(federation)
        frozen.wait_phase(("claimed elsewhere",), 60.0)
        assert owner.end() == 0
        frozen.end(signal.SIGINT)


def publish(federation: FederationProcess) -> None:
    for alias in federation.namespaces:
        federation.publish(alias, MESSAGES, BODY_BYTES)


def run_beside(federation: FederationProcess) -> RunProcess:
    """A run on another state folder, as of another machine."""
    federation.state = federation.folder / "other"
    run = federation.run(*RUN)
    run.wait_phase(("waiting", "moving"))
    return run
