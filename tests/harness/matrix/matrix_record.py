"""The record of the fault matrix: what each run of a fault found, in a file that `docs/generate.py` makes a page of.

Each fault is recorded with the time and the commit of its run, so that the matrix can be run in slices. A record is written whole.
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

FILE = Path(__file__).parents[3] / "benchmarks" / "results" / "fault-matrix.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One scenario under one fault.

    Attributes:
        published: messages that were acknowledged to publishers.
        unsettled: messages before the scenario's routes when the fault struck.
        lost: acknowledged, and neither at their target nor waiting nor set aside.
        stuck: still waiting although nothing has moved for minutes.
        duplicated: second copies.
        out_of_order: copies that come after a later one of the same origin.
        set_aside: dead-lettered at the source.
        detects: whether second copies are to be dropped.
        ordered: whether order is promised.
    """

    published: int
    unsettled: int
    lost: int
    stuck: int
    duplicated: int
    out_of_order: int
    set_aside: int
    detects: bool
    ordered: bool

    @property
    def is_good(self) -> bool:
        """Whether it is as promised."""
        is_whole = not self.lost and not self.stuck and self.published > 0
        return is_whole and not (self.detects and self.duplicated) and not (self.ordered and self.out_of_order)


def write(fault: str, reported: str, carrier: str, seconds: float, cells: Mapping[str, Cell]) -> None:
    """Record what a fault did.

    Args:
        fault: its name.
        reported: what happens.
        carrier: what moved the messages.
        seconds: from its end until all was moved.
        cells: by scenario.
    """
    record = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    git = ["git", "-C", str(FILE.parent), "rev-parse", "--short", "HEAD"]
    record[fault] = {
        "told": reported,
        "carrier": carrier,
        "at": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
        "commit": subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip(),
        "seconds": round(seconds),
        "cells": {name: asdict(cell) for name, cell in cells.items()},
    }
    written = FILE.with_suffix(".new")
    written.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    os.replace(written, FILE)
