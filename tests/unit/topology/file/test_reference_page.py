from __future__ import annotations

from pathlib import Path

from isthmus.topology.file.reader import FILE_SPEC, NAMESPACE_SPEC
from isthmus.topology.file.reference_page import reference_page
from isthmus.topology.pattern import PATTERNS

PAGE = Path(__file__).parents[4] / "docs" / "reference" / "federation-file.md"


def test_the_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference_page(), "run `make docs`"


def test_no_setting_is_undocumented() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for spec in (FILE_SPEC, NAMESPACE_SPEC, *(pattern.spec for pattern in PATTERNS.values())):
        for setting in spec.settings:
            assert f"`{setting.name}`" in page
            assert not setting.available or setting.description in page
