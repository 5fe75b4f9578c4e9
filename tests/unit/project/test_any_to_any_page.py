"""The page of what moves between all systems shows what the record contains, and every broken promise."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from harness.matrix import any_record
from harness.matrix.any_record import Cell

PAGE = Path(__file__).parents[3] / "docs" / "any_to_any_page.py"
GOOD = Cell(sent=2000, lost=0, duplicated=0, out_of_order=0, ordered=True)


@pytest.fixture(name="page")
def _page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("any_to_any_page", PAGE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    record = tmp_path / "record.json"
    monkeypatch.setattr(module, "RECORD", record)
    monkeypatch.setattr(any_record, "FILE", record)
    return module


def test_a_slice_that_runs_again_replaces_its_record(page: ModuleType) -> None:
    any_record.write("kafka", "calm", {"kafka": replace(GOOD, lost=3), "http": GOOD})
    any_record.write("http", "calm", {"kafka": GOOD, "http": GOOD})
    any_record.write("kafka", "calm", {"kafka": GOOD, "http": GOOD})
    any_record.write("kafka", "killed", {"kafka": replace(GOOD, duplicated=7)})
    text: str = page.any_to_any_page()
    assert "of 2,000 messages" in text
    assert "| from \\ to | kafka | http |" in text
    assert text.count("| kafka | 0 / 0 / 0 | 0 / 0 / 0 |") == 1
    assert "| kafka | 0 / 7 / 0 |" in text
    assert "Everything arrived as it was sent" in text


@pytest.mark.parametrize(
    ("cell", "shown"),
    [
        (GOOD, "0 / 0 / 0"),
        (replace(GOOD, lost=1), "**1 / 0 / 0**"),
        (replace(GOOD, duplicated=1_234), "0 / 1,234 / 0"),
        (replace(GOOD, out_of_order=4), "**0 / 0 / 4**"),
        (replace(GOOD, out_of_order=4, ordered=False), "0 / 0 / –"),
    ],
)
def test_a_broken_promise_is_marked(page: ModuleType, cell: Cell, shown: str) -> None:
    any_record.write("kafka", "calm", {"http": cell})
    assert f"| kafka | {shown} |" in page.any_to_any_page()


def test_what_did_not_arrive_as_it_was_sent_is_named(page: ModuleType) -> None:
    any_record.write("kafka", "calm", {"http": replace(GOOD, changed=("double", "uuid"))})
    text: str = page.any_to_any_page()
    assert "- kafka to http: `double`, `uuid`" in text
    assert "Everything arrived" not in text
