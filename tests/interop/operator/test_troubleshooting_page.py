"""docs/how-to/troubleshoot.md: every error text in it is one that isthmus gives for what the page says.

A row of the page without a case in `tests/troubleshooting` fails, and so does a case without a row.
"""

from __future__ import annotations

import ast
import contextlib
import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from isthmus.errors import IsthmusError
from isthmus.testing.namespace import NamespaceProcess, namespace
from troubleshooting import entity, message, movement, secret, start
from troubleshooting import namespace as namespace_cases
from troubleshooting.case import CASES, ELSEWHERE, Stage, pattern

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "how-to" / "troubleshoot.md"
# Of rows about what an operator sees, rather than of an error.
WORDS = {"status", "QuotaExceeded"}
MODULES = (start, secret, entity, movement, message, namespace_cases)
ENTITIES = "queues: {orders: {}, small: {max_size_in_megabytes: 1}, sessions: {requires_session: true}}"


def quoted() -> list[str]:
    """The text in backticks in the first column of each table."""
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    cells = [row.split(" | ")[0] for row in rows]
    return [text for cell in cells for text in re.findall(r"`([^`]+)`", cell) if text not in WORDS]


@pytest.fixture(scope="module")
def serve() -> Iterator[Callable[[], NamespaceProcess]]:
    with contextlib.ExitStack() as stack:
        running: list[NamespaceProcess] = []

        def served() -> NamespaceProcess:
            if not running:
                running.append(stack.enter_context(namespace(config=ENTITIES)))
            return running[0]

        yield served


def test_every_row_has_a_case_and_every_case_a_row() -> None:
    assert MODULES
    assert sorted({*CASES, *ELSEWHERE}) == sorted(quoted())


@pytest.mark.parametrize("text", sorted(CASES))
def test_isthmus_says_what_the_page_says(
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    serve: Callable[[], NamespaceProcess],
) -> None:
    caplog.set_level(logging.WARNING)
    try:
        reported = str(CASES[text](Stage(tmp_path, monkeypatch, caplog, serve)))
    except IsthmusError as error:
        reported = str(error)
    assert pattern(text).search(reported), reported


@pytest.mark.parametrize("test", sorted(set(ELSEWHERE.values())))
def test_a_case_elsewhere_is_there(test: str) -> None:
    path, _, name = test.partition("::")
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
