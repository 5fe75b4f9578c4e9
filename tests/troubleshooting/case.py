"""The register of cases: an error text of the page, and what leads to it.

What it is: a decorator, and what a case is given. A case returns a text of isthmus, or raises the error. What it is not: the comparison
with the page.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from isthmus.testing.namespace import NamespaceProcess

__all__ = ["CASES", "ELSEWHERE", "Stage", "elsewhere", "pattern", "shows"]


class Stage(NamedTuple):
    """What a case may use.

    Attributes:
        folder: empty.
        patch: undone behind the case.
        log: what was logged.
        serve: starts the namespace that all cases share, at the first call.
    """

    folder: Path
    patch: pytest.MonkeyPatch
    log: pytest.LogCaptureFixture
    serve: Callable[[], NamespaceProcess]


Case = Callable[[Stage], object]
CASES: dict[str, Case] = {}
ELSEWHERE: dict[str, str] = {}
"""By text, the test that shows it: `path::name`."""


def shows(*texts: str) -> Callable[[Case], Case]:
    """A case of these texts, as the page writes them."""

    def kept(case: Case) -> Case:
        for text in texts:
            assert text not in CASES, text
            CASES[text] = case
        return case

    return kept


def elsewhere(text: str, test: str) -> None:
    """A text that a test shows which needs more than a case has."""
    ELSEWHERE[text] = test


def pattern(text: str) -> re.Pattern[str]:
    """What matches a text of the page; `…` replaces names."""
    return re.compile(
        ".+?".join(re.escape(part.strip()) for part in text.split("…")).replace("'.+?'", "'.*?'"), re.DOTALL
    )
