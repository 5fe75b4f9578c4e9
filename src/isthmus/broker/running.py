"""Where the process that has a data folder open listens.

What it is: one small file in the folder, for commands on the same machine. What it is not: a lock (the store has one),
nor true after a kill: whoever reads it finds out by connecting.

Invariants:
    I1. The file holds no key.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from isthmus.whole_file import write_file

__all__ = ["forget_running", "read_running", "tell_running"]

_NAME = "running.json"


def tell_running(data: Path, values: dict[str, Any]) -> None:
    """Write host, ports, whether they speak in the clear, and the authority's file."""
    write_file(data / _NAME, json.dumps(values).encode())


def read_running(data: Path) -> dict[str, Any] | None:
    """What the last process that opened the folder said; None if it has ended in good order."""
    try:
        found: dict[str, Any] = json.loads((data / _NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found


def forget_running(data: Path) -> None:
    """Remove the file: the process ends in good order."""
    (data / _NAME).unlink(missing_ok=True)
