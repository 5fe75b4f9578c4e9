"""A run that cannot work ends at once, before Spark, with what to do; one whose namespace is unavailable continues."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from isthmus.replication.namespace_clients import NamespaceClients
from isthmus.supervisor.examination.preflight import preflight
from isthmus.testing.federation import FederationProcess
from isthmus.topology import read
from isthmus.topology.file.source import load
from isthmus.topology.route import routes


@pytest.fixture(name="federation", scope="module")
def _federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FederationProcess]:
    with FederationProcess(tmp_path_factory.mktemp("federation")) as running:
        yield running


def test_a_run_before_apply_or_without_its_secret_ends_with_2(
    federation: FederationProcess, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = federation.file.read_text(encoding="utf-8").replace("topic: flights", "topic: trains")
    lines = [line for line in text.splitlines() if not line.startswith("  jfk:")]
    lines.insert(lines.index("tasks:"), "  jfk: {connection: env:NOWHERE_CONNECTION}")
    file = federation.folder / "unapplied.yaml"
    file.write_text("\n".join(lines).replace("  flights:", "  trains:") + "\n", encoding="utf-8")
    monkeypatch.delenv("NOWHERE_CONNECTION", raising=False)
    command = [
        sys.executable,
        "-c",
        "from isthmus.cli.app import main; main()",
        "run",
        str(file),
        "--state",
        str(tmp_path),
    ]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2, ended.stderr
    reported = ended.stderr
    assert "namespace ewr: The messaging entity 'isthmus.claims/Subscriptions/trains' could not be found." in reported
    assert "trains/Subscriptions/isthmus.trains.jfk" in reported
    assert "isthmus apply" in reported
    assert "env:NOWHERE_CONNECTION: the environment variable is not set" in reported


def test_what_is_applied_and_what_is_unavailable_is_no_fault(federation: FederationProcess) -> None:
    whole = load(federation.file)
    found = preflight(whole, routes(whole), lambda: NamespaceClients(whole))
    assert (found.faults, found.away) == ((), ())
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    key = "SharedAccessKeyName=n;SharedAccessKey=k;UseDevelopmentEmulator=true"
    (federation.folder / "away.txt").write_text(f"Endpoint=sb://127.0.0.1:{port};{key}", encoding="utf-8")
    text = federation.file.read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("  jfk:")]
    lines.insert(lines.index("tasks:"), f'  jfk: {{connection: "file:{federation.folder}/away.txt"}}')
    away = read("\n".join(lines)).anchored(federation.folder)
    found = preflight(away, routes(away), lambda: NamespaceClients(away))
    assert found.faults == ()
    assert [alias for alias, _ in found.away] == ["jfk"]
