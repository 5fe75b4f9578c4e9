"""The addresses of the process that has a data folder open.

What it is: one small file in the folder, for commands on the same machine. What it is not: a lock (the store has one),
nor up to date after a kill: readers check it by connecting.

Invariants:
    I1. The file contains no key.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from isthmus.whole_file import write_file

__all__ = ["forget_running", "read_running", "write_running"]

_NAME = "running.json"


def write_running(data: Path, values: dict[str, Any]) -> None:
    """Writes host, ports, whether they serve plain connections, and the authority's file."""
    write_file(data / _NAME, json.dumps(values).encode())


def read_running(data: Path) -> dict[str, Any] | None:
    """The contents of the file of the last process; None if that has ended in order."""
    try:
        found: dict[str, Any] = json.loads((data / _NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found


def forget_running(data: Path) -> None:
    """Removes the file: the process ends in order."""
    (data / _NAME).unlink(missing_ok=True)
