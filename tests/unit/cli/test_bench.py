"""Folders that `isthmus bench` writes into."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.cli import bench
from isthmus.errors import InvalidArgumentError


def test_a_folder_for_results_that_cannot_be_written_is_reported_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = tmp_path / "results"
    taken.write_text("a file")
    monkeypatch.setattr("isthmus.bench.namespace.measure_namespace", lambda *_: pytest.fail("measured"))
    with pytest.raises(InvalidArgumentError, match=r"nothing can be written in .*results"):
        bench.everything(results=taken, data=tmp_path)


def test_a_folder_for_data_that_cannot_be_written_is_bad_input(tmp_path: Path) -> None:
    taken = tmp_path / "data"
    taken.write_text("a file")
    with pytest.raises(InvalidArgumentError, match=r"nothing can be written in .*data"), bench._folder(taken):
        pass


def test_the_folder_of_a_measurement_is_removed(tmp_path: Path) -> None:
    with bench._folder(tmp_path / "data") as folder:
        assert folder.is_dir()
    assert list((tmp_path / "data").iterdir()) == []
