"""The account of the long counts: what each test asked for and what it saw.

Tests pass it in their reports, which pytest-xdist carries from worker to controller.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

__all__ = ["ASKED", "SEEN", "Account"]

ASKED = "long count asked"
"""User property of a test's report: rounds asked for."""

SEEN = "long count seen"
"""User property of a test's report: (asked, seen), as the test reports them."""


class Account:
    """Plugin: collects the reports and prints the account at the end."""

    def __init__(self) -> None:
        self._properties: dict[str, list[tuple[str, Any]]] = {}
        self._failed: set[str] = set()
        self._passed: set[str] = set()
        self._running: pytest.Item | None = None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._running = item
        done = yield
        self._running = None  # not so where the run was broken off
        return done

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.user_properties:
            self._properties[report.nodeid] = report.user_properties
        if report.failed:
            self._failed.add(report.nodeid)
        elif report.when == "call" and report.passed:
            self._passed.add(report.nodeid)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
        if self._running is not None:
            self._properties[self._running.nodeid] = self._running.user_properties
        rows = [(node, self._verdict(node), *line) for node in self._properties for line in self._lines(node)]
        if not rows:
            return
        terminalreporter.section("long counts")
        for node, verdict, asked, seen in rows:
            terminalreporter.line(f"{verdict}: {asked}: {seen}  [{node}]")
        folder = config.getoption("--soak-results")
        if folder:
            terminalreporter.line(f"written to {_write(config, Path(folder), rows)}")

    def _lines(self, node: str) -> list[tuple[str, str]]:
        properties = self._properties[node]
        asked = [str(value) for name, value in properties if name == ASKED]
        seen = [(str(value[0]), str(value[1])) for name, value in properties if name == SEEN]
        if not asked:
            return seen
        return seen or [(" and ".join(asked) + " rounds", "as its test reports")]

    def _verdict(self, node: str) -> str:
        if node in self._failed:
            return "FAILED"
        return "held" if node in self._passed else "BROKEN OFF"


def _write(config: pytest.Config, folder: Path, rows: list[tuple[str, str, str, str]]) -> Path:
    git = ["git", "-C", str(config.rootpath), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip() or "unknown"
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{time.strftime('%Y-%m-%d-%H%M', time.gmtime())}-{commit}-soak.md"
    table = "".join(f"| {asked} | {seen} | {verdict} | {node} |\n" for node, verdict, asked, seen in rows)
    file.write_text(
        f"# Long counts at {commit}\n\n| asked | seen | verdict | test |\n| --- | --- | --- | --- |\n{table}"
    )
    return file
