"""The status document of a run is whole, private, and has its age."""

from __future__ import annotations

import errno
import json
import os
import stat
import threading
import time
from pathlib import Path

import pytest
from rich.console import Console

from isthmus.replication.query.route_progress import RouteProgress
from isthmus.replication.query.tally import Counts
from isthmus.supervisor import status as status_module
from isthmus.supervisor.condition import Condition
from isthmus.supervisor.display import route_table
from isthmus.supervisor.status import Footprint, StatusFile, describe, read_status
from isthmus.topology.file.name import state_folder
from isthmus.topology.model import Endpoint, Route

ROUTE = Route(
    name="flights.ewr.jfk",
    task="flights",
    pattern="all-active",
    source=Endpoint("ewr", "flights/Subscriptions/isthmus.flights.jfk"),
    targets=(Endpoint("jfk", "flights"),),
)


def test_state_lies_beside_the_file(tmp_path: Path) -> None:
    assert state_folder(tmp_path / "prod.yaml") == tmp_path / ".isthmus" / "prod"


def test_a_living_run_is_alive_and_an_ended_one_is_not(tmp_path: Path) -> None:
    assert read_status(tmp_path) is None
    file = StatusFile(tmp_path / "state")
    file.write("running", [], Footprint())
    found = read_status(tmp_path / "state")
    assert found is not None
    assert found["alive"]
    assert found["process"] == os.getpid()
    file.write("ended", [], Footprint())
    found = read_status(tmp_path / "state")
    assert found is not None
    assert not found["alive"]


def test_a_run_that_starts_is_alive_however_long_that_takes(tmp_path: Path) -> None:
    """Spark may need longer to start than the maximum age of a document."""
    condition = Condition()
    condition.pending("Spark is starting")
    with StatusFile(tmp_path).repeated("starting", [describe(ROUTE, condition, 0.0)], 0.001):
        found = first = read_status(tmp_path)
        assert found is not None
        assert first is not None
        assert (found["alive"], found["state"], found["routes"][0]["well"]) == (True, "starting", False)
        limit = time.monotonic() + 10.0
        while found is None or found["updated_at_seconds"] == first["updated_at_seconds"]:
            assert time.monotonic() < limit
            found = read_status(tmp_path)
    assert not [each for each in threading.enumerate() if each.name == "status"]


def test_a_run_that_was_killed_or_hangs_is_not_alive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    StatusFile(tmp_path).write("running", [], Footprint())
    document = json.loads((tmp_path / status_module.FILE).read_text())
    (tmp_path / status_module.FILE).write_text(json.dumps(document | {"process_started": 1.0}))
    found = read_status(tmp_path)
    assert found is not None
    assert not found["alive"]
    old = document["updated_at_seconds"] - 2 * status_module.STALE_SECONDS
    (tmp_path / status_module.FILE).write_text(json.dumps(document | {"updated_at_seconds": old}))
    found = read_status(tmp_path)
    assert found is not None
    assert not found["alive"]
    assert found["age_seconds"] >= status_module.STALE_SECONDS


def test_i3_the_document_is_private_and_scrubbed(tmp_path: Path) -> None:
    condition = Condition()
    condition.starting(0)
    condition.failed(1, "refused: Endpoint=sb://h/;SharedAccessKey=verysecret;", 5)
    StatusFile(tmp_path / "state").write("running", [describe(ROUTE, condition, 2)], Footprint())
    path = tmp_path / "state" / status_module.FILE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert "verysecret" not in path.read_text()


def test_a_route_is_described_and_shown() -> None:
    condition = Condition()
    condition.starting(0)
    condition.backlog_seen(1, 7, 90.0)
    condition.seen(1, RouteProgress(counts=Counts(3, 3), processes=(os.getpid(),)))
    footprint = Footprint()
    footprint.measure()
    described = describe(ROUTE, condition, 1, footprint)
    assert described["phase"] == "moving"
    assert (described["moved"], described["waiting"], described["oldest_age_seconds"]) == (3, 7, 90.0)
    assert described["memory_bytes"] > 1_000_000
    assert footprint.total_bytes >= described["memory_bytes"]
    table = route_table([described])
    assert table.row_count == 1
    console = Console(width=200)
    with console.capture() as shown:
        console.print(table)
    assert "1 min 30 s" in shown.get()


def test_a_document_that_cannot_be_written_is_reported_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A full disk must not end the run, which cannot be seen without it."""

    def full(*_: object, **__: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    file = StatusFile(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(status_module.os, "open", full)
        assert file.write("running", [], Footprint())["state"] == "running"
        assert file.write("draining", [], Footprint())["state"] == "draining"
    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path / status_module.FILE} cannot be written: No space left on device"
    ]
    file.write("ended", [], Footprint())
    found = read_status(tmp_path)
    assert found is not None
    assert found["state"] == "ended"


@pytest.mark.parametrize("content", [b"", b"\xff", b"[]", b"7", b"{}", b'{"updated_at_seconds": null}'])
def test_a_document_that_no_run_has_written_counts_as_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / status_module.FILE).write_bytes(content)
    assert read_status(tmp_path) is None
