"""Every module that starts Spark is in one chain, and the lists name modules that are there."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

from harness.plugin.side_by_side import LONG, SPARK_CHAINS, position

ROOT = Path(__file__).parents[3]
CONFTEST = """
import sys
sys.path.insert(0, {tests!r})
from harness.plugin.side_by_side import SideBySide

def pytest_configure(config):
    if config.pluginmanager.has_plugin("xdist"):
        config.pluginmanager.register(SideBySide(), "side-by-side")
"""
SOUND, CRASH = "def test_{}(): pass\n", "def test_{}():\n    import os\n    os._exit(1)\n"
CHAINED = [module for chain in SPARK_CHAINS.values() for module in chain]


def marked() -> set[str]:
    """Modules some tests of which are marked `spark`."""
    found = (ROOT / "tests").rglob("test_*.py")
    return {
        path.relative_to(ROOT).as_posix()
        for path in found
        if path != Path(__file__) and "pytest.mark.spark" in path.read_text(encoding="utf-8")
    }


def test_every_module_that_starts_spark_is_in_one_chain() -> None:
    assert [module for module, count in Counter(CHAINED).items() if count > 1] == []
    assert set(CHAINED) == marked()


def test_the_long_modules_are_there() -> None:
    assert [module for module in LONG if not (ROOT / module).is_file()] == []
    assert not set(LONG) & set(CHAINED)


def test_chains_come_first_and_what_is_not_named_keeps_its_order() -> None:
    nodes = [
        "tests/fault/namespace/test_fuzz.py::test_a",
        f"{LONG[0]}::test_b",
        "tests/unit/x.py::test_c",
        f"{CHAINED[0]}::test_d",
    ]
    assert sorted(nodes, key=position) == [nodes[3], nodes[1], nodes[0], nodes[2]]


def test_tests_that_end_their_workers_fail_once_and_the_others_run(tmp_path: Path) -> None:
    """As pytest-xdist does it, the test runs again and again; and where nothing is left behind it, the run never ends."""
    (tmp_path / "conftest.py").write_text(CONFTEST.format(tests=str(ROOT / "tests")))
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    modules = {"a": (CRASH, SOUND), "b": (CRASH, SOUND), "last": (SOUND, SOUND, CRASH), "other": (SOUND, SOUND)}
    for name, texts in modules.items():
        text = "".join(each.format(number) for number, each in enumerate(texts))
        (tmp_path / f"test_{name}.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--numprocesses", "2", "--dist", "loadscope"],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert "3 failed, 6 passed" in done.stdout, done.stdout + done.stderr
