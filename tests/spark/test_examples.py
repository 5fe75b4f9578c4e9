"""Every example proves itself, in one process, so that Spark's Java starts once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from isthmus.demo.example import main

pytestmark = pytest.mark.spark

EXAMPLES = sorted(run.parent for run in (Path(__file__).parents[2] / "examples").glob("*/run"))


@pytest.mark.parametrize("folder", EXAMPLES, ids=lambda folder: folder.name)
def test_an_example_loses_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(folder, ["--json", "--messages", "300", "--calm"])
    told = capsys.readouterr()
    assert code == 0, told.out + told.err
    report = json.loads(told.out.splitlines()[-1])
    assert report["sent"] > 0
    assert report["arrived"] > 0
    assert [report[name] for name in ("lost", "duplicated", "out_of_order")] == [0, 0, 0], report
