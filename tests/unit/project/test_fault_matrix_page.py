"""The page of the fault matrix shows what the record contains, and every broken promise."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import asdict, replace
from pathlib import Path
from types import ModuleType

import pytest

from harness.matrix import matrix_record
from harness.matrix.matrix_record import Cell

PAGE = Path(__file__).parents[3] / "docs" / "fault_matrix_page.py"
GOOD = Cell(
    published=10, unsettled=5, lost=0, stuck=0, duplicated=0, out_of_order=0, set_aside=1, detects=True, ordered=True
)


@pytest.fixture(name="page")
def _page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("fault_matrix_page", PAGE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    record = tmp_path / "record.json"
    monkeypatch.setattr(module, "RECORD", record)
    monkeypatch.setattr(matrix_record, "FILE", record)
    return module


def test_a_fault_that_is_played_again_replaces_its_record(page: ModuleType) -> None:
    matrix_record.write("cut", "all is cut", "a run", 1.0, {"copy": replace(GOOD, lost=3)})
    matrix_record.write("slow", "all is slow", "a run", 1.0, {"copy": GOOD})
    matrix_record.write("cut", "all is cut", "a run", 1.0, {"copy": GOOD})
    text: str = page.fault_matrix_page()
    assert "| | cut | slow |" in text
    assert "| copy | 0 / 0 / 0 | 0 / 0 / 0 |" in text
    assert "| cut | all is cut | a run | 10 | 5 | 1 |" in text


@pytest.mark.parametrize(
    ("cell", "shown"),
    [
        (GOOD, "0 / 0 / 0"),
        (replace(GOOD, lost=1), "**1 / 0 / 0**"),
        (replace(GOOD, stuck=2), "**2 / 0 / 0**"),
        (replace(GOOD, duplicated=3), "**0 / 3 / 0**"),
        (replace(GOOD, duplicated=3, detects=False), "0 / 3 / 0"),
        (replace(GOOD, out_of_order=4), "**0 / 0 / 4**"),
        (replace(GOOD, out_of_order=4, ordered=False), "0 / 0 / 4"),
    ],
)
def test_a_broken_promise_is_marked_and_fails_its_test(page: ModuleType, cell: Cell, shown: str) -> None:
    page.RECORD.write_text(
        json.dumps({"cut": {"told": "", "carrier": "", "at": "", "commit": "", "cells": {"copy": asdict(cell)}}})
    )
    assert f"| copy | {shown} |" in page.fault_matrix_page()
    assert cell.is_good is ("*" not in shown)


def test_a_scenario_without_messages_proves_nothing() -> None:
    assert not replace(GOOD, published=0).is_good
