"""The record of what was moved from every kind to every kind, in a file that `docs/generate.py` makes a page of.

Each source is recorded with the time and the commit of its run, so that the whole can be run in slices. A record is written whole.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

__all__ = ["Cell", "write"]

FILE = Path(__file__).parents[3] / "benchmarks" / "results" / "any-to-any.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What became of the messages of one pair.

    Attributes:
        sent: acknowledged by the source.
        lost: not at the target.
        duplicated: second copies at the target.
        out_of_order: first copies that come after a later one of the same lane.
        ordered: whether order is promised.
        changed: what did not arrive as it was sent: names of properties, `body`, or fields.
    """

    sent: int
    lost: int
    duplicated: int
    out_of_order: int
    ordered: bool
    changed: tuple[str, ...] = ()


def write(source: str, how: str, cells: Mapping[str, Cell]) -> None:
    """Record what became of the messages of one kind of source.

    Args:
        source: the kind.
        how: `calm`, or `killed` where every server was killed meanwhile.
        cells: by kind of target.
    """
    record = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    git = ["git", "-C", str(FILE.parent), "rev-parse", "--short", "HEAD"]
    record.setdefault(how, {})[source] = {
        "at": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
        "commit": subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip(),
        "cells": {name: asdict(cell) for name, cell in cells.items()},
    }
    written = FILE.with_suffix(".new")
    written.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    os.replace(written, FILE)
