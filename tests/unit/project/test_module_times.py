"""`--times` prints what each module costs, also where pytest-xdist runs it in a worker."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]
CONFTEST = """
import sys
sys.path.insert(0, {tests!r})
from harness.plugin.module_times import ModuleTimes

def pytest_configure(config):
    config.pluginmanager.register(ModuleTimes(), "module-times")
"""
# A child that uses a tenth of a second of CPU time.
BUSY = "import time\nwhile time.process_time() < 0.1: pass"
MODULES = {
    "test_own.py": "import time\n\ndef test_own():\n    end = time.process_time() + 0.1\n    while time.process_time() < end: pass\n",
    "test_child.py": f"import subprocess, sys\n\ndef test_child():\n    subprocess.run([sys.executable, '-c', {BUSY!r}])\n",
}


@pytest.mark.parametrize("side_by_side", [(), ("--numprocesses", "1")], ids=["one process", "a worker"])
def test_processor_time_is_distinguished(tmp_path: Path, side_by_side: tuple[str, ...]) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST.format(tests=str(TESTS)))
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    for name, text in MODULES.items():
        (tmp_path / name).write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *side_by_side],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = re.findall(r"^ +(\d+) +([\d.]+) +([\d.]+) +([\d.]+)  (test_\w+\.py)", done.stdout, re.MULTILINE)
    reported = {
        module: (int(tests), float(wall), float(own), float(children)) for tests, wall, own, children, module in rows
    }
    assert set(reported) == set(MODULES)
    tests, wall, own, children = reported["test_own.py"]
    assert (tests, children) == (1, 0.0)
    assert wall >= own >= 0.1
    assert reported["test_child.py"][3] >= 0.1
    assert "(collection)" in done.stdout
