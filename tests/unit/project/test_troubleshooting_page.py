"""Every error text on the troubleshooting page is one that the code raises; every command has its row of exit codes."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from isthmus.cli.app import verbs

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "how-to" / "troubleshoot.md"
EXIT_CODES = ROOT / "docs" / "reference" / "exit-codes.md"
NOT_OURS = {
    "Connection refused",  # the system's
    "verify",
    "status",
    "Exceeded",
    "QuotaExceeded",
}


def quoted() -> list[str]:
    """What stands in backticks in the first column of each table."""
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    cells = [row.split(" | ")[0] for row in rows]
    return [text for cell in cells for text in re.findall(r"`([^`]+)`", cell) if text not in NOT_OURS]


@cache
def texts() -> str:
    """All texts of the code, with a mark where values are put in."""
    found: list[str] = []
    for file in (ROOT / "src" / "isthmus").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                found.append(
                    "".join(str(each.value) if isinstance(each, ast.Constant) else "…" for each in node.values)
                )
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(re.sub(r"%\.?\d*[a-z]", "…", node.value))
    return "\n".join(found)


@pytest.mark.parametrize("text", quoted())
def test_an_error_of_the_page_is_one_of_the_code(text: str) -> None:
    parts = [part.strip(" ;:,.'") for part in text.split("…")]
    for part in filter(None, parts):
        assert part in texts(), f"no text of the code has {part!r}"


def test_every_command_has_its_exit_codes() -> None:
    rows = [
        line.split(" | ")[0] for line in EXIT_CODES.read_text(encoding="utf-8").splitlines() if line.startswith("| `")
    ]
    named = {word.split()[0] for row in rows for word in re.findall(r"`([^`]+)`", row)}
    assert set(verbs()) - named == set()
