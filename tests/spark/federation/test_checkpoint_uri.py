"""Checkpoints at a URI: leases are counted there over the death of a run and its restart, and no message depends on them.

Two file systems of Hadoop's: `file`, and `viewfs`, which represents any that is not the machine's own (its scheme has no meaning outside
Hadoop, so that a path taken out of the URI would be noticed).
"""

from __future__ import annotations

import shutil
import signal
import time
from pathlib import Path

import pytest

from harness.check.federation_check import check_moved
from isthmus.testing.federation import FederationProcess

pytestmark = [pytest.mark.spark, pytest.mark.soak]

MESSAGES = 400
RUN = ("--json", "--retry-first", "1", "--retry-limit", "5", "--lease", "2")
MOVING = ("waiting", "moving")
LONG_SECONDS = 180.0


def settings(scheme: str, folder: Path) -> str:
    """`spark:` of a federation file whose checkpoints are in the folder, under a URI of that scheme."""
    if scheme == "file":
        return f"spark: {{checkpoints: {folder.as_uri()!r}}}\n"
    root = f"{{spark.hadoop.fs.viewfs.mounttable.kept.linkFallback: {folder.as_uri()!r}}}"
    return f"spark: {{checkpoints: 'viewfs://kept/flights', settings: {root}}}\n"


def leases(folder: Path) -> int:
    """The number of the last lease that has ended."""
    found = [int(file.name) for file in folder.glob("**/routes/commits/*") if file.name.isdecimal()]
    return max(found, default=-1)


def wait_leases(folder: Path, wanted: int) -> None:
    limit = time.monotonic() + LONG_SECONDS
    while leases(folder) < wanted:
        assert time.monotonic() < limit, f"lease {leases(folder)}, wanted {wanted}: {list(folder.rglob('*'))[:50]}"
        time.sleep(0.1)


@pytest.mark.parametrize("scheme", ["file", "viewfs"])
def test_a_run_that_is_killed_continues_with_its_checkpoints_at_a_uri(tmp_path: Path, scheme: str) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    with FederationProcess(tmp_path / "federation", ("ewr", "jfk"), ("lock_duration: 5s",)) as federation:
        federation.file.write_text(federation.file.read_text() + settings(scheme, kept))
        run = federation.run(*RUN)
        run.wait_phase(MOVING)
        for alias in federation.namespaces:
            federation.publish(alias, MESSAGES)
        wait_leases(kept, 1)
        for alias in federation.namespaces:
            federation.publish(alias, MESSAGES)
        run.end(signal.SIGKILL)
        before = leases(kept)

        run = federation.run(*RUN)
        run.wait_phase(MOVING)
        for alias in federation.namespaces:
            federation.publish(alias, MESSAGES)
        wait_leases(kept, before + 2)
        check_moved(federation)
        assert run.end() == 0, run.log()[-3000:]
        assert not list(federation.state.rglob("commits")), "no checkpoint lies in the state folder"

        shutil.rmtree(kept)  # as where the file system was lost: leases are counted from 1 again
        kept.mkdir()
        for alias in federation.namespaces:
            federation.publish(alias, MESSAGES)
        run = federation.run(*RUN)
        wait_leases(kept, 1)
        check_moved(federation)
        assert run.end() == 0, run.log()[-3000:]
