"""The wheel in an environment of its own, without extras: it serves a namespace to the SDK, and reports what is missing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

ROOT = Path(__file__).parents[3]
MOST_BYTES = 150_000_000


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an environment into which the wheel was installed."""
    folder = tmp_path_factory.mktemp("install")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    uv = Path(sys.executable).with_name("uv")
    environment = folder / "environment"
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, environment], check=True)
    subprocess.run([uv, "pip", "install", "--quiet", "--python", environment / "bin/python", wheel], check=True)
    return environment


def isthmus(installed: Path, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [installed / "bin/isthmus", *arguments],
        cwd=cwd,
        env={"PATH": "/usr/bin:/bin", "HOME": str(cwd)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_it_is_small_and_has_no_spark(installed: Path) -> None:
    files = [file for file in installed.rglob("*") if file.is_file() and not file.is_symlink()]
    assert sum(file.stat().st_size for file in files) < MOST_BYTES
    assert not list(installed.rglob("pyspark"))


@pytest.fixture
def connection_string(installed: Path, tmp_path: Path) -> Iterator[str]:
    config = tmp_path / "entities.yaml"
    config.write_text("queues: {orders: {}}\n")
    ports = ["--port", "0", "--tls-port", "0", "--http-port", "0"]
    command = [str(installed / "bin/isthmus"), "namespace", "serve", "--data", "data", "--config", str(config), *ports]
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PYTHONUNBUFFERED": "1"}
    serving = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert serving.stdout is not None
        yield next(line for line in serving.stdout if "Endpoint=sb://" in line).split()[-1]
    finally:
        os.kill(serving.pid, signal.SIGTERM)
        serving.communicate(timeout=30)


def test_it_serves_the_sdk(connection_string: str) -> None:
    with ServiceBusClient.from_connection_string(connection_string) as client:
        with client.get_queue_sender("orders") as sender:
            sender.send_messages(ServiceBusMessage("first"))
        with client.get_queue_receiver("orders", max_wait_time=30) as receiver:
            (message,) = receiver.receive_messages(max_message_count=1)
            assert str(message) == "first"
            receiver.complete_message(message)


def test_what_needs_an_extra_names_the_line_that_installs_it(installed: Path, tmp_path: Path) -> None:
    for arguments, extra in ((("run",), "spark"), (("bench", "bridge"), "spark"), (("demo",), "demo")):
        done = isthmus(installed, *arguments, cwd=tmp_path)
        assert done.returncode == 1, done.stderr
        assert done.stderr.strip().endswith(f"pip install 'isthmus[{extra}]'")
        assert done.stderr.startswith("isthmus: isthmus ")


@pytest.mark.parametrize(
    "verb",
    [
        "lint",
        "plan",
        "apply",
        "doctor",
        "status",
        "verify",
        "schema",
        "init",
        "rules",
        "entity",
        "send",
        "receive",
        "peek",
    ],
)
def test_what_needs_none_answers(installed: Path, tmp_path: Path, verb: str) -> None:
    done = isthmus(installed, verb, "--help", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
