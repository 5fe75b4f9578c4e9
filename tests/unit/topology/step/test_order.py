"""Which steps of a chain are carried out in the reader, in the query and in the sink."""

from __future__ import annotations

from itertools import product

import pytest

from isthmus.topology.step import StepDeclaration
from isthmus.topology.step.order import changed_before_divert, split


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


def diverting(kind: str, **settings: str) -> StepDeclaration:
    return StepDeclaration(kind, {"on_failure": "divert", "divert_to": {"to": "ops", "queue": "bad"}, **settings})


def test_i2_no_step_that_changes_messages_is_in_the_reader_where_one_in_the_sink_diverts() -> None:
    chain = [*steps("validate", "enrich", "encrypt"), diverting("validate")]
    before, _, behind = split(chain)
    assert (kinds(before), kinds(behind)) == (["validate", "enrich", "encrypt", "validate"], [])
    before, _, behind = split([*chain, *steps("normalise")])
    assert (kinds(before), kinds(behind)) == (["validate", "enrich", "encrypt", "validate"], ["normalise"])
    before, _, behind = split([*steps("set", "python"), diverting("validate")])
    assert (kinds(before), kinds(behind)) == ([], ["set", "python", "validate"])
    first = [diverting("validate"), *steps("enrich", "encrypt")]
    before, _, behind = split(first)
    assert (kinds(before), kinds(behind)) == (["validate", "enrich"], ["encrypt"])


@pytest.mark.parametrize(
    ("chain", "late"),
    [
        ([*steps("set", "sql"), diverting("validate")], "validate"),
        ([*steps("set", "sql"), diverting("filter"), *steps("sql")], "filter"),
        ([*steps("validate", "sql"), diverting("validate")], None),
        ([diverting("validate"), *steps("set", "sql")], None),
        ([*steps("set", "sql", "deduplicate"), diverting("validate")], None),
        ([*steps("deduplicate", "set", "sql"), diverting("validate")], "validate"),
        ([*steps("set", "sql"), diverting("aggregate")], "aggregate"),
        ([*steps("set"), diverting("validate")], None),
    ],
)
def test_i2_a_message_that_was_changed_before_dataframes_cannot_be_diverted(
    chain: list[StepDeclaration], late: str | None
) -> None:
    found = changed_before_divert(chain)
    assert (found.kind if found else None) == late
