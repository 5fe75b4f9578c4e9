"""Where the steps of a chain are executed.

What it is: the split of a chain into the single-message steps before its DataFrame steps, the DataFrame steps, and the steps after them. A
chain without DataFrame steps is split so that both Python workers of its query have about the same load. What it is not: their execution
(`isthmus.replication.step.chain.chain`).

Invariants:
    I1. The three parts, joined, are the chain.
    I2. A diverting step diverts the message as it was received: no step that changes messages is in an earlier part.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from isthmus.topology.step import StepDeclaration, changes
from isthmus.topology.step.divert import divert_of

__all__ = ["SHUFFLING", "Legs", "changed_before_divert", "in_between", "is_frame_step", "legs", "split"]

SHUFFLING = ("deduplicate", "aggregate")
"""Steps that process several messages together."""

_EITHER = ("filter",)
"""Steps that work on columns as well as on messages."""

# Microseconds of one processor for a message of 600 bytes: for steps as benchmarks/steps.py measures them, for other kinds about the mean;
# for reader and sink their own needs. Only the ratios matter.
_STEP_COSTS = {"validate": 13, "filter": 11, "set": 22, "reduce": 14, "normalise": 90}
_OTHER_STEP_COST = 30
_READER_COST, _SINK_COST = 10, 25


def is_frame_step(step: StepDeclaration) -> bool:
    """Whether a step is a function of a DataFrame, not of one message."""
    return step.kind == "sql" or (step.kind == "python" and step.settings.get("takes") != "message")


def split(
    steps: Sequence[StepDeclaration],
) -> tuple[Sequence[StepDeclaration], Sequence[StepDeclaration], Sequence[StepDeclaration]]:
    """The steps before the first DataFrame step, those from the first to the last, and those after; without one, see `_balance`."""
    frames = [index for index, step in enumerate(steps) if is_frame_step(step)]
    if not frames:
        index = _balance(steps)
        return steps[:index], (), steps[index:]
    first, behind = frames[0], frames[-1] + 1
    return steps[:first], steps[first:behind], steps[behind:]


def _balance(steps: Sequence[StepDeclaration]) -> int:
    """The number of steps that the reader executes, so that the busier of reader and sink has the least load.

    Functions of the user run in the sink: a death of the reader leaves all received messages locked, and raises their delivery counts.
    """
    costs = [_STEP_COSTS.get(step.kind, _OTHER_STEP_COST) for step in steps]
    most = next((index for index, step in enumerate(steps) if step.kind == "python"), len(steps))

    def busier(index: int) -> int:
        return max(_READER_COST + sum(costs[:index]), _SINK_COST + sum(costs[index:]))

    return min((index for index in range(most + 1) if not _loses_original(steps[:index], steps[index:])), key=busier)


def _loses_original(before: Sequence[StepDeclaration], behind: Sequence[StepDeclaration]) -> bool:
    """Whether a step would divert a message that another process has changed."""
    return any(map(changes, before)) and any(divert_of(step.settings) for step in behind)


def changed_before_divert(steps: Sequence[StepDeclaration]) -> StepDeclaration | None:
    """A step that diverts messages which were changed before DataFrame steps; None if there is none. After a step that processes several
    messages a message is received again, from the spool.
    """
    parted = next((at for at, step in enumerate(steps) if step.kind in SHUFFLING), None)
    if parted is None:
        return _late(steps)
    # The parts of a message that a window needs are checked before the spool.
    return _late(steps[: parted + 1]) or _late(steps[parted + 1 :])


def _late(steps: Sequence[StepDeclaration]) -> StepDeclaration | None:
    before, frames, behind = split(steps)
    if not frames or not any(map(changes, before)):
        return None
    return next((step for step in (*frames, *behind) if divert_of(step.settings)), None)


class Legs(NamedTuple):
    """The steps of a route that reads through a spool, each as text.

    Attributes:
        before: steps of the route into the spool.
        shuffle: step of the query between its spools; empty: the route has none.
        behind: steps of the route out of the spool.
    """

    before: tuple[str, ...]
    shuffle: str = ""
    behind: tuple[str, ...] = ()


def legs(texts: Sequence[str]) -> Legs:
    """Where the steps of a route are executed. A step `aggregate` is also among those before: there it checks whether a message has the fields
    that it needs, while its source can still dead-letter it.
    """
    for at, text in enumerate(texts):
        kind = StepDeclaration.from_text(text).kind
        if kind in SHUFFLING:
            checked = (text,) if kind == "aggregate" else ()
            return Legs((*texts[:at], *checked), text, tuple(texts[at + 1 :]))
    return Legs(tuple(texts))


def in_between(steps: Sequence[StepDeclaration]) -> StepDeclaration | None:
    """A step that must not be between two DataFrame steps, but is; None if there is none."""
    parted = next((at for at, step in enumerate(steps) if step.kind in SHUFFLING), None)
    if parted is not None:
        return in_between(steps[:parted]) or in_between(steps[parted + 1 :])
    _, frames, _ = split(steps)
    return next((step for step in frames if not is_frame_step(step) and step.kind not in _EITHER), None)
