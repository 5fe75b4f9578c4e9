"""The tutorial's own files and commands, run as they are written there."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from isthmus.testing.namespace import namespace

pytestmark = pytest.mark.spark

PAGE = Path(__file__).parents[3] / "docs" / "tutorial" / "first-federation.md"
FEDERATED, CONFIG = "isthmus: 1", "topics:"
ROUTES = 2


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def block(language: str, start: str) -> str:
    (found,) = (text for text in blocks(language) if start in text)
    return found


class Shell:
    """Runs the tutorial's commands in one folder."""

    def __init__(self, folder: Path, variables: dict[str, str]) -> None:
        self.folder = folder
        self.environment = {**os.environ, "COLUMNS": "200", **variables}

    def isthmus(self, *arguments: str) -> str:
        return self.python("-m", "isthmus", *arguments)

    def python(self, *arguments: str) -> str:
        process = subprocess.run(
            [sys.executable, *arguments],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert process.returncode == 0, process.stdout + process.stderr
        return process.stdout

    def run(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "isthmus", "run"]
        return subprocess.Popen(command, cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, text=True)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    config = block("yaml", CONFIG)
    with namespace(tmp_path / "ewr", config=config) as ewr, namespace(tmp_path / "jfk", config=config) as jfk:
        yield Shell(tmp_path, {"EWR_CONNECTION": ewr.connection_string, "JFK_CONNECTION": jfk.connection_string})


def test_the_tutorial_does_what_it_says(shell: Shell) -> None:
    (shell.folder / "isthmus.yaml").write_text(block("yaml", FEDERATED))
    (shell.folder / "send.py").write_text(block("python", "send_messages"))
    (shell.folder / "receive.py").write_text(block("python", "complete_message"))
    shell.isthmus("lint")
    assert "isthmus.flights.jfk" in shell.isthmus("plan")
    shell.isthmus("apply")
    running = shell.run()
    assert running.stdout is not None
    try:
        waiting: set[str] = set()
        while len(waiting) < ROUTES:
            line = running.stdout.readline()
            assert line, "run ended by itself"
            if ": waiting" in line:
                waiting.add(line.split(":")[0])
        shell.python("send.py")
        received = shell.python("receive.py")
        assert "UA 1545 departs" in received
        assert "ewr/flights" in received
        shell.isthmus("send", "--namespace", "ewr", "flights", "UA 1714 departs")
        assert "UA 1714 departs" in shell.isthmus("receive", "--namespace", "jfk", "flights/Subscriptions/board")
        shell.isthmus("status")
        shell.isthmus("verify")
        running.send_signal(signal.SIGINT)
        assert running.wait(60) == 0
    finally:
        if running.poll() is None:
            running.kill()
            running.wait()
        running.stdout.close()
