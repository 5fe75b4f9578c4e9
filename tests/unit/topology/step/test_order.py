"""Which steps of a chain are carried out in the reader, in the query and in the sink."""

from __future__ import annotations

from itertools import product

import pytest

from isthmus.topology.step import StepDeclaration
from isthmus.topology.step.order import split


def steps(*kinds: str) -> list[StepDeclaration]:
    return [StepDeclaration(kind, {"takes": "message"} if kind == "python" else {}) for kind in kinds]


def kinds(part: object) -> list[str]:
    return [step.kind for step in part]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("chain", "reader", "sink"),
    [
        (["validate", "enrich", "encrypt"], ["validate", "enrich"], ["encrypt"]),
        (["decrypt", "normalise", "validate"], ["decrypt"], ["normalise", "validate"]),
        (["encrypt"], ["encrypt"], []),
        (["python"], [], ["python"]),
        (["validate", "python", "encrypt"], ["validate"], ["python", "encrypt"]),
        ([], [], []),
    ],
)
def test_without_dataframe_steps_reader_and_sink_have_about_the_same_to_do(
    chain: list[str], reader: list[str], sink: list[str]
) -> None:
    before, frames, behind = split(steps(*chain))
    assert (kinds(before), kinds(frames), kinds(behind)) == (reader, [], sink)


@pytest.mark.parametrize("length", range(5))
def test_i1_the_parts_joined_are_the_chain(length: int) -> None:
    for chain in product(("validate", "normalise", "sql", "encrypt"), repeat=length):
        before, frames, behind = split(steps(*chain))
        assert kinds(before) + kinds(frames) + kinds(behind) == list(chain)
        assert all(step.kind == "sql" for step in [*frames[:1], *frames[-1:]])
