"""The errors of an installation without an extra."""

from __future__ import annotations

import importlib.util
import pickle
import tomllib
from pathlib import Path

import pytest

from isthmus.extra import EXTRAS, MissingExtraError, require

PROJECT = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]


def test_every_extra_is_one_that_pip_knows() -> None:
    assert set(EXTRAS) == set(PROJECT["optional-dependencies"]) - {"all"}


@pytest.mark.parametrize("extra", EXTRAS)
def test_what_is_installed_is_not_refused(extra: str) -> None:
    require(extra, "this test")


def test_a_missing_extra_names_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pyspark" else find(name))
    with pytest.raises(MissingExtraError) as raised:
        require("spark", "isthmus run")
    text = "isthmus run needs pyspark, which is not installed: pip install 'isthmus[spark]'"
    assert str(raised.value) == str(pickle.loads(pickle.dumps(raised.value))) == text


def test_the_page_about_installation_names_every_extra() -> None:
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "install.md").read_text(encoding="utf-8")
    assert [name for name in PROJECT["optional-dependencies"] if f"| `isthmus[{name}]` |" not in page] == []
