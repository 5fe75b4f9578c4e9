"""The steps that a task can declare, which process messages between source and target.

What it is: the settings and checks of each kind of step, one short class per kind, and the registry. A new step is one class here,
one line in `STEPS`, and one module in `isthmus.replication.step`; reader, lint, schema and reference page then include it. What it is
not: their execution.
"""

from __future__ import annotations

from isthmus.topology.step.base import StepKind
from isthmus.topology.step.body import MapStep, NormaliseStep, ReduceStep
from isthmus.topology.step.cipher import DecryptStep, EncryptStep
from isthmus.topology.step.custom import PythonStep, SqlStep
from isthmus.topology.step.declaration import StepDeclaration
from isthmus.topology.step.enrich import EnrichStep
from isthmus.topology.step.rule import FilterStep, SetStep
from isthmus.topology.step.validate import ValidateStep
from isthmus.topology.step.window import AggregateStep, DeduplicateStep

__all__ = [
    "STEPS",
    "StepDeclaration",
    "StepKind",
    "anchored",
    "changes",
    "may_drop",
    "may_set_aside",
    "shuffles",
]

STEPS: dict[str, StepKind] = {
    kind.spec.name: kind
    for kind in (
        ValidateStep(),
        FilterStep(),
        SetStep(),
        EnrichStep(),
        MapStep(),
        ReduceStep(),
        NormaliseStep(),
        EncryptStep(),
        DecryptStep(),
        PythonStep(),
        SqlStep(),
        DeduplicateStep(),
        AggregateStep(),
    )
}


def anchored(step: StepDeclaration, directory: object) -> StepDeclaration:
    """The same step with relative file paths resolved against a directory."""
    from pathlib import Path

    kind = STEPS[step.kind]
    return step.anchored(Path(str(directory)), (*kind.paths, *kind.folders), kind.references)


def changes(step: StepDeclaration) -> bool:
    """Whether a step changes messages."""
    return STEPS[step.kind].changes


def may_drop(step: StepDeclaration) -> bool:
    """Whether a step may complete a message at its source without passing it on."""
    return step.settings.get("on_failure") == "drop" or step.kind in ("python", "sql") or shuffles(step)


def may_set_aside(step: StepDeclaration) -> bool:
    """Whether a step dead-letters messages on which it fails."""
    return step.settings.get("on_failure") == "dead-letter"


def shuffles(step: StepDeclaration) -> bool:
    """Whether a step processes several messages together, so that its routes read through a spool."""
    return STEPS[step.kind].shuffles
