"""A failed test is run again alone: one that passes then is let pass and named, two fail the run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]
CONFTEST = """
import sys
sys.path.insert(0, {tests!r})
from harness.plugin.flaky import Flaky

def pytest_addoption(parser):
    parser.addoption("--soak", action="store_true")
    parser.addoption("--again", action="store_true")

def pytest_configure(config):
    if config.getoption("--again"):
        config.pluginmanager.register(Flaky(), "flaky")
"""
# A test that fails the first time and passes the second: the file remembers.
FAILS_ONCE = """
import pathlib

def test_{name}():
    seen = pathlib.Path(__file__).with_suffix(".{name}")
    if not seen.exists():
        seen.touch()
        raise AssertionError("first time")
"""
FAILS = "\ndef test_always():\n    raise AssertionError\n"


def run(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text(CONFTEST.format(tests=str(TESTS)))
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_it.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-p", "no:xdist", "-p", "no:cacheprovider", "--again", "test_it.py"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize(
    ("text", "code", "named"),
    [
        (FAILS_ONCE.format(name="one"), 0, ["one"]),
        (FAILS_ONCE.format(name="one") + FAILS_ONCE.format(name="two"), 1, ["one", "two"]),
        (FAILS_ONCE.format(name="one") + FAILS, 1, ["one"]),
        pytest.param(FAILS, 1, [], marks=pytest.mark.soak),
        pytest.param("def test_fine():\n    assert True\n", 0, [], marks=pytest.mark.soak),
    ],
    ids=["one flaky", "two flaky", "one flaky and one broken", "one broken", "none"],
)
def test_one_flaky_test_passes_and_more_do_not(tmp_path: Path, text: str, code: int, named: list[str]) -> None:
    done = run(tmp_path, text)
    assert done.returncode == code, done.stdout + done.stderr
    flaky = [line for line in done.stdout.splitlines() if line.startswith("flaky: ")]
    assert [line.split("::test_")[1].split()[0] for line in flaky] == named
