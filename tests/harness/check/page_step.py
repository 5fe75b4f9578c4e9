"""The steps of a page of the documentation, in order: commands to enter, and files to write.

A command is an indented block or one in `sh`. A file is a block in yaml or python behind a paragraph that names it between
backticks. Other blocks are shown, and nothing is done with them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

__all__ = ["Command", "File", "steps"]

_FENCE = re.compile(r"^```(\w*)$")
_ITEM = re.compile(r"[-*] |\d+\. ")  # what is indented behind it belongs to the list
_FILE = re.compile(r"`([\w-]+\.(?:yaml|py|json))`")


class Command(NamedTuple):
    """Lines to enter, one after the other."""

    lines: tuple[str, ...]


class File(NamedTuple):
    """A file to write."""

    name: str
    text: str


def steps(page: Path) -> list[Command | File]:
    """The steps of a page."""
    found: list[Command | File] = []
    lines = page.read_text(encoding="utf-8").splitlines()
    paragraph, has_ended, at = "", True, 0
    while at < len(lines):
        line = lines[at]
        if fence := _FENCE.match(line):
            end = lines.index("```", at)
            block = lines[at + 1 : end]
            names = _FILE.findall(paragraph)
            if fence[1] == "sh":
                found.append(Command(tuple(block)))
            elif fence[1] in {"yaml", "python"} and names:
                found.append(File(names[-1], "\n".join(block) + "\n"))
            at = end + 1
        elif line.startswith("    ") and has_ended and not _ITEM.match(paragraph):
            end = next((number for number in range(at, len(lines)) if not lines[number].startswith("    ")), len(lines))
            found.append(Command(tuple(each.strip() for each in lines[at:end])))
            at = end
        else:
            if line:
                paragraph = line if has_ended else f"{paragraph} {line}"
            has_ended = not line
            at += 1
    return found
