"""Reads the fixture files of the rules language; their form is described in tests/fixtures/rules/README.md."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from isthmus.rules import Value
from isthmus.rules.document import parse_message, parse_value

FOLDER = Path(__file__).parent / "fixtures" / "rules"


@dataclass(frozen=True)
class Case:
    """One expression with one thing that is expected of it."""

    expression: str
    place: str
    given: str = ""
    expected: str = ""
    parameters: dict[str, Value] = field(default_factory=dict)

    @property
    def message(self) -> tuple[dict[str, Value], dict[str, Value]]:
        """System and user properties of the given message."""
        return parse_message(json.dumps(whole_message(json.loads(self.given))))


def whole_message(document: dict[str, Any]) -> dict[str, Any]:
    """A message in full, from itself or from its user properties alone."""
    if any(isinstance(document.get(part), dict) and "$type" not in document[part] for part in ("sys", "user")):
        return document
    return {"sys": {}, "user": document}


def load(suffix: str) -> list[Case]:
    """All cases of the files with a suffix: `filter`, `action` or `fault`."""
    return [case for path in sorted(FOLDER.glob(f"*.{suffix}")) for case in _cases(path)]


def load_faults(stem: str) -> dict[str, list[tuple[int, int, str]]]:
    """Expressions that do not parse, with line, column and text of every fault, from `<stem>.fault`."""
    found: dict[str, list[tuple[int, int, str]]] = {}
    for case in _cases(FOLDER / f"{stem}.fault"):
        place, _, text = case.given.partition(" ")
        line, _, column = place.partition(":")
        found.setdefault(case.expression, []).append((int(line), int(column), text))
    return found


def _cases(path: Path) -> Iterator[Case]:
    expression = ""
    parameters: dict[str, Value] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        if not line.startswith(" "):
            expression = json.loads(line.removeprefix("json:")) if line.startswith("json:") else line
            parameters = {}
        elif line.strip().startswith("@"):
            name, _, value = line.strip().partition(" = ")
            parameters = {**parameters, name: parse_value(json.loads(value))}
        else:
            given, _, expected = line.strip().rpartition(" => ")
            yield Case(expression, f"{path.name}:{number}", given or line.strip(), expected, parameters)
