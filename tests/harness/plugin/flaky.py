"""Runs failed tests again, each alone, and marks those that pass then.

A test that fails beside others and passes alone is flaky: it depends on the machine's speed or on its neighbours. One such
test is let pass and named at the end of the run, so that it is mended soon. Two fail the run.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

__all__ = ["Flaky"]

# More failures than this have a common cause: running them again only takes time.
AT_MOST_AGAIN = 6
TOLERATED = 1
SECONDS_AGAIN = 600


class Flaky:
    """Plugin of the controlling process.

    Attributes:
        failed: tests that failed, in the order of their reports.
        flaky: those of them that passed when run again alone.
    """

    def __init__(self) -> None:
        self.failed: list[str] = []
        self.flaky: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and report.nodeid not in self.failed:
            self.failed.append(report.nodeid)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if exitstatus != pytest.ExitCode.TESTS_FAILED or not 0 < len(self.failed) <= AT_MOST_AGAIN:
            return
        self.flaky = [node for node in self.failed if self._passes(session.config, node)]
        if len(self.flaky) == len(self.failed) <= TOLERATED:
            session.exitstatus = pytest.ExitCode.OK

    @staticmethod
    def _passes(config: pytest.Config, node: str) -> bool:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", node]
        command += ["--soak"] if config.getoption("--soak") else []
        try:
            again = subprocess.run(command, cwd=config.rootpath, check=False, timeout=SECONDS_AGAIN)
        except subprocess.TimeoutExpired:
            return False
        return again.returncode == pytest.ExitCode.OK

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for node in self.flaky:
            terminalreporter.line(f"flaky: {node} failed, and passed when run again alone", yellow=True)
