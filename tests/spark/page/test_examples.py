"""Every example checks its own result, in one process, so that Spark's Java starts once.

Each takes half a minute, most of it the start of a query and an outage: `make test` runs two, `make soak` all, and tests/spark/federation/test_patterns.py
has every pattern in one run.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from isthmus.demo.example.example import main

pytestmark = pytest.mark.spark

EXAMPLES = sorted(run.parent for run in (Path(__file__).parents[3] / "examples").glob("*/run"))
QUICK = {"spillover", "validation"}
# Of these `isthmus verify` can judge every flow.
JUDGED = {"four-systems"}
CASES = [pytest.param(each, id=each.name, marks=() if each.name in QUICK else pytest.mark.soak) for each in EXAMPLES]


@pytest.mark.parametrize("folder", CASES)
def test_an_example_loses_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(folder, ["--json", "--messages", "300", "--calm"])
    reported = capsys.readouterr()
    assert code == 0, reported.out + reported.err
    report = json.loads(reported.out.splitlines()[-1])
    assert report["sent"] > 0
    assert report["arrived"] > 0
    assert [report[name] for name in ("lost", "duplicated", "out_of_order")] == [0, 0, 0], report
    assert folder.name not in JUDGED or report["verdict"] == "clean", report
