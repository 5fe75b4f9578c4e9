"""Which steps of a chain are carried out where.

What it is: the split of a chain into the steps of one message each before its DataFrame steps, those, and the ones behind them. A chain
without DataFrame steps is split where both Python workers of its query have about the same to do. What it is not: their execution
(`isthmus.replication.step.chain.chain`).

Invariants:
    I1. The three parts, joined, are the chain.
    I2. What a step diverts is the message as it was received: no step that changes messages is in an earlier part than it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from isthmus.topology.step import StepDeclaration, changes
from isthmus.topology.step.divert import divert_of

__all__ = ["SHUFFLING", "Legs", "changed_before_divert", "in_between", "is_frame_step", "legs", "split"]

SHUFFLING = ("deduplicate", "aggregate")
"""Steps that look at several messages together."""

_EITHER = ("filter",)
"""Steps that work on columns as well as on messages."""

# Microseconds of one processor for a message of 600 bytes: of steps as benchmarks/steps.py measures them, of other kinds about the mean;
# of reader and sink what they need themselves. Only their ratios matter.
_STEP_COSTS = {"validate": 13, "filter": 11, "set": 22, "reduce": 14, "normalise": 90}
_OTHER_STEP_COST = 30
_READER_COST, _SINK_COST = 10, 25


def is_frame_step(step: StepDeclaration) -> bool:
    """Whether a step is a function of a DataFrame, not of one message."""
    return step.kind == "sql" or (step.kind == "python" and step.settings.get("takes") != "message")


def split(
    steps: Sequence[StepDeclaration],
) -> tuple[Sequence[StepDeclaration], Sequence[StepDeclaration], Sequence[StepDeclaration]]:
    """The steps before the first DataFrame step, those from the first to the last, and those behind; without one, see `_balance`."""
    frames = [place for place, step in enumerate(steps) if is_frame_step(step)]
    if not frames:
        place = _balance(steps)
        return steps[:place], (), steps[place:]
    first, behind = frames[0], frames[-1] + 1
    return steps[:first], steps[first:behind], steps[behind:]


def _balance(steps: Sequence[StepDeclaration]) -> int:
    """How many of the steps the reader takes, so that the busier of reader and sink has least to do.

    Functions of the user's own are the sink's: what kills the reader leaves all that it has received locked, and raises its delivery count.
    """
    costs = [_STEP_COSTS.get(step.kind, _OTHER_STEP_COST) for step in steps]
    most = next((place for place, step in enumerate(steps) if step.kind == "python"), len(steps))

    def busier(place: int) -> int:
        return max(_READER_COST + sum(costs[:place]), _SINK_COST + sum(costs[place:]))

    return min((place for place in range(most + 1) if not _loses_original(steps[:place], steps[place:])), key=busier)


def _loses_original(before: Sequence[StepDeclaration], behind: Sequence[StepDeclaration]) -> bool:
    """Whether a step would divert what another process has changed."""
    return any(map(changes, before)) and any(divert_of(step.settings) for step in behind)


def changed_before_divert(steps: Sequence[StepDeclaration]) -> StepDeclaration | None:
    """A step that diverts messages which were changed before DataFrame steps; None where none does. Behind a step that looks at several
    messages a message is received again, from the spool.
    """
    parted = next((at for at, step in enumerate(steps) if step.kind in SHUFFLING), None)
    if parted is None:
        return _late(steps)
    # What a window needs of a message is looked at before the spool.
    return _late(steps[: parted + 1]) or _late(steps[parted + 1 :])


def _late(steps: Sequence[StepDeclaration]) -> StepDeclaration | None:
    before, frames, behind = split(steps)
    if not frames or not any(map(changes, before)):
        return None
    return next((step for step in (*frames, *behind) if divert_of(step.settings)), None)


class Legs(NamedTuple):
    """The steps of a route that reads through a spool, each as text.

    Attributes:
        before: of the route into the spool.
        shuffle: of the query between its spools; empty: the route has none.
        behind: of the route out of the spool.
    """

    before: tuple[str, ...]
    shuffle: str = ""
    behind: tuple[str, ...] = ()


def legs(texts: Sequence[str]) -> Legs:
    """Where the steps of a route are carried out. A step `aggregate` is also among those before: there it looks whether a message has what
    it needs, while its source can still dead-letter it.
    """
    for at, text in enumerate(texts):
        kind = StepDeclaration.from_text(text).kind
        if kind in SHUFFLING:
            looked = (text,) if kind == "aggregate" else ()
            return Legs((*texts[:at], *looked), text, tuple(texts[at + 1 :]))
    return Legs(tuple(texts))


def in_between(steps: Sequence[StepDeclaration]) -> StepDeclaration | None:
    """A step that is between two DataFrame steps and cannot; None where there is none."""
    parted = next((at for at, step in enumerate(steps) if step.kind in SHUFFLING), None)
    if parted is not None:
        return in_between(steps[:parted]) or in_between(steps[parted + 1 :])
    _, frames, _ = split(steps)
    return next((step for step in frames if not is_frame_step(step) and step.kind not in _EITHER), None)
