"""The Python back end against the fixture files that the Spark back end has to pass, too."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from harness.fixture.rule_fixture import Case, load, load_faults, whole_message
from isthmus.rules import DictView, FilterError, RuleSyntaxError, parse_action, parse_filter
from isthmus.rules.document import show_message
from isthmus.rules.syntax.tree import render

VERDICTS = {True: "match", False: "no match", None: "unknown"}


@pytest.mark.parametrize("case", load("filter"), ids=lambda case: case.place)
def test_filter_gives_the_verdict(case: Case) -> None:
    found = parse_filter(case.expression, case.parameters)
    view = DictView(*case.message)
    if case.expected == "error":
        with pytest.raises(FilterError):
            found.matches(view)
        return
    verdict = found.matches(view)
    assert verdict is None or type(verdict) is bool
    assert VERDICTS[verdict] == case.expected


@pytest.mark.parametrize("case", load("filter"), ids=lambda case: case.place)
def test_rendered_filter_parses_to_the_same_tree(case: Case) -> None:
    """tree.I1."""
    found = parse_filter(case.expression, case.parameters)
    assert parse_filter(render(found.tree), case.parameters).tree == found.tree


@pytest.mark.parametrize("case", load("action"), ids=lambda case: case.place)
def test_action_gives_the_changed_message(case: Case) -> None:
    found = parse_action(case.expression, case.parameters)
    sys, user = case.message
    before = copy.deepcopy((sys, user))
    if case.expected == "error":
        with pytest.raises(FilterError):
            found.apply(DictView(sys, user))
        assert (sys, user) == before
        return
    found.apply(DictView(sys, user)).apply_to(sys, user)
    assert_same(show_message(sys, user), whole_message(json.loads(case.expected)))


def test_there_are_enough_cases() -> None:
    assert len(load("filter")) > 500
    assert len(load("action")) > 50


@pytest.mark.parametrize(("expression", "faults"), load_faults("filter").items())
def test_filter_names_every_fault_with_its_place(expression: str, faults: list[tuple[int, int, str]]) -> None:
    with pytest.raises(RuleSyntaxError) as caught:
        parse_filter(expression)
    assert_faults(caught.value, faults)


@pytest.mark.parametrize(("expression", "faults"), load_faults("action").items())
def test_action_names_every_fault_with_its_place(expression: str, faults: list[tuple[int, int, str]]) -> None:
    with pytest.raises(RuleSyntaxError) as caught:
        parse_action(expression)
    assert_faults(caught.value, faults)


def assert_faults(error: RuleSyntaxError, expected: list[tuple[int, int, str]]) -> None:
    found = [(fault.line, fault.column) for fault in error.faults]
    assert found == sorted((line, column) for line, column, _ in expected), str(error)
    for fault, (_, _, text) in zip(error.faults, sorted(expected), strict=True):
        assert text in f"{fault.message}; {fault.hint}"
    assert (error.line, error.column) == found[0]


def assert_same(found: Any, expected: Any) -> None:
    """Equality in which 1, 1.0 and true differ and {"$any": type} takes any value of the type."""
    if isinstance(expected, dict) and expected.keys() == {"$any"}:
        kind = found["$type"] if isinstance(found, dict) else "string" if isinstance(found, str) else None
        assert kind == expected["$any"]
        return
    assert type(found) is type(expected)
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        for name in expected:
            assert_same(found[name], expected[name])
    else:
        assert found == expected
