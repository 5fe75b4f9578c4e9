"""What the conformance suite does not ask of a pair of systems, each with the reason.

What it is: `reason`, for a pair and a scenario. The table is made of the tables `WAIVERS` of all modules `harness.waiver.waiver_<kind>`,
each with keys (kind of the source, kind of the target, ability or scenario); an empty kind means any. What it is not: a means to leave out
what fails.
"""

from __future__ import annotations

import importlib
from pathlib import Path

from isthmus.testing.bridge.scenario import SCENARIOS

__all__ = ["SCRIPT", "WAIVERS", "reason"]

# Every real system waives `Ability.SCRIPT` as its source.
SCRIPT = "what a real system says cannot be scripted, nor its account of each message be looked into"

WAIVERS: dict[tuple[str, str, str], str] = {}


def reason(source: str, target: str, scenario: str) -> str:
    """Why a pair is not put through a scenario; empty where it is."""
    what = [scenario, *(each.value for each in sorted(SCENARIOS[scenario].needs, key=lambda each: each.value))]
    found = (WAIVERS.get((a, b, each)) for each in what for a in (source, "") for b in (target, ""))
    return next(filter(None, found), "")


def _collect() -> None:
    for each in sorted((Path(__file__).parents[1] / "waiver").glob("waiver_*.py")):
        table: dict[tuple[str, str, str], str] = importlib.import_module(f"harness.waiver.{each.stem}").WAIVERS
        if twice := sorted(WAIVERS.keys() & table.keys()):
            raise ValueError(f"{each.name}: waived already elsewhere: {twice}")
        WAIVERS.update(table)


_collect()
