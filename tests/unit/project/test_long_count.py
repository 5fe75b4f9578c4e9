"""The account of the long counts is written where `--soak-results` says, also into a folder that is not there yet."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[2]
CONFTEST = """
import sys
sys.path.insert(0, {tests!r})
from harness.plugin.long_count import Account

def pytest_addoption(parser):
    parser.addoption("--soak-results")

def pytest_configure(config):
    config.pluginmanager.register(Account(), "long-count-account")
"""
COUNTS = """
from harness.plugin.long_count import ASKED, SEEN

def test_kills(request):
    request.node.user_properties.append((ASKED, 3))
    request.node.user_properties.append((SEEN, ("3 kills", "3, seed 7")))

def test_of_a_fixed_number(request):
    request.node.user_properties.append((SEEN, ("200 messages", "200, seed 8")))
"""


def test_the_results_folder_is_made(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST.format(tests=str(TESTS)))
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_counts.py").write_text(COUNTS)
    results = tmp_path / "not" / "there"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--soak-results", str(results)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (file,) = results.glob("*-soak.md")
    assert "| 3 kills | 3, seed 7 | held | test_counts.py::test_kills |" in file.read_text()
    # Also of a test whose number does not depend on `--soak`.
    assert "| 200 messages | 200, seed 8 | held | test_counts.py::test_of_a_fixed_number |" in file.read_text()
