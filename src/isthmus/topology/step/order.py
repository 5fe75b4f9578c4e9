"""Which steps of a chain are carried out where.

What it is: the split of a chain into the steps of one message each before its DataFrame steps, those, and the ones behind them. What it
is not: their execution (`isthmus.replication.step.chain`).

Invariants:
    I1. The three parts, joined, are the chain.
"""

from __future__ import annotations

from collections.abc import Sequence

from isthmus.topology.step.declaration import StepDeclaration

__all__ = ["in_between", "is_frame_step", "split"]

_EITHER = ("filter",)
"""Steps that work on columns as well as on messages."""


def is_frame_step(step: StepDeclaration) -> bool:
    """Whether a step is a function of a DataFrame, not of one message."""
    return step.kind == "sql" or (step.kind == "python" and step.settings.get("takes") != "message")


def split(
    steps: Sequence[StepDeclaration],
) -> tuple[Sequence[StepDeclaration], Sequence[StepDeclaration], Sequence[StepDeclaration]]:
    """The steps before the first DataFrame step, those from the first to the last, and those behind; without one, all are behind."""
    frames = [place for place, step in enumerate(steps) if is_frame_step(step)]
    if not frames:
        return (), (), steps
    first, behind = frames[0], frames[-1] + 1
    return steps[:first], steps[first:behind], steps[behind:]


def in_between(steps: Sequence[StepDeclaration]) -> StepDeclaration | None:
    """A step that stands between two DataFrame steps and cannot; None where there is none."""
    _, frames, _ = split(steps)
    return next((step for step in frames if not is_frame_step(step) and step.kind not in _EITHER), None)
