"""Filters and actions as the rest of isthmus uses them: text, tree and compiled function in one value.

What it is not: a rule with a name, which belongs to a subscription (see `isthmus.entities`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar, Protocol

from isthmus.errors import Fault
from isthmus.rules.error import RuleSyntaxError
from isthmus.rules.evaluation.action import Changes, compile_action
from isthmus.rules.evaluation.closure import compile_predicate
from isthmus.rules.syntax.parser import parse_predicate
from isthmus.rules.syntax.statement import parse_statements
from isthmus.rules.syntax.tree import Predicate, Statement
from isthmus.rules.value import Value, kind_of, plain
from isthmus.rules.view import View

__all__ = ["Action", "FalseFilter", "Filter", "MessageFilter", "TrueFilter", "parse_action", "parse_filter"]


class MessageFilter(Protocol):
    """Anything that selects messages: `Filter`, `CorrelationFilter`, `TrueFilter`, `FalseFilter`."""

    @property
    def matches(self) -> Callable[[View], bool | None]:
        """True selects; False and None (unknown) do not. Raises FilterError if evaluation fails."""
        ...


class Filter:
    """A SQL filter.

    Attributes:
        text: as it was written.
        parameters: as they were given.
        tree: what was parsed.
        matches: from a view to True, False or None (unknown); only True selects. Raises FilterError where evaluation
            fails, e.g. on a division by zero.
    """

    __slots__ = ("matches", "parameters", "text", "tree")

    def __init__(self, text: str, parameters: Mapping[str, Value] | None = None) -> None:
        self.text = text
        self.parameters = dict(parameters or {})
        values = _parameter_values(self.parameters, text)
        self.tree: Predicate = parse_predicate(text, values)
        self.matches: Callable[[View], bool | None] = compile_predicate(self.tree, values)

    def __repr__(self) -> str:
        return f"Filter({self.text!r}" + (f", {self.parameters!r})" if self.parameters else ")")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Filter) and (self.text, self.parameters) == (other.text, other.parameters)

    def __hash__(self) -> int:
        return hash(self.text)

    def __reduce__(self) -> tuple[type[Filter], tuple[str, dict[str, Value]]]:
        return type(self), (self.text, self.parameters)


class Action:
    """A SQL action.

    Attributes:
        text: as it was written.
        parameters: as they were given.
        statements: what was parsed.
        apply: from a view to the changes; raises FilterError where it fails, and then nothing is changed.
    """

    __slots__ = ("apply", "parameters", "statements", "text")

    def __init__(self, text: str, parameters: Mapping[str, Value] | None = None) -> None:
        self.text = text
        self.parameters = dict(parameters or {})
        values = _parameter_values(self.parameters, text)
        self.statements: tuple[Statement, ...] = parse_statements(text, values)
        self.apply: Callable[[View], Changes] = compile_action(self.statements, values)

    def __repr__(self) -> str:
        return f"Action({self.text!r}" + (f", {self.parameters!r})" if self.parameters else ")")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Action) and (self.text, self.parameters) == (other.text, other.parameters)

    def __hash__(self) -> int:
        return hash(self.text)

    def __reduce__(self) -> tuple[type[Action], tuple[str, dict[str, Value]]]:
        return type(self), (self.text, self.parameters)


class _ConstantFilter:
    __slots__ = ()
    text: ClassVar[str]
    verdict: ClassVar[bool]

    def matches(self, view: View) -> bool:
        """The constant result."""
        return self.verdict

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self)

    def __hash__(self) -> int:
        return hash(type(self))


class TrueFilter(_ConstantFilter):
    """Selects every message."""

    __slots__ = ()
    text = "1=1"
    verdict = True


class FalseFilter(_ConstantFilter):
    """Selects none."""

    __slots__ = ()
    text = "1=0"
    verdict = False


def parse_filter(text: str, parameters: Mapping[str, Value] | None = None) -> Filter:
    """Parses a SQL filter.

    Args:
        text: at most 1,024 characters.
        parameters: values of ``@name``, by name in any case, with or without ``@``.

    Raises:
        RuleSyntaxError: every fault, each with line and column; a parameter without a value is one.
    """
    return Filter(text, parameters)


def parse_action(text: str, parameters: Mapping[str, Value] | None = None) -> Action:
    """Parses a SQL action of at most 32 statements; see `parse_filter`."""
    return Action(text, parameters)


def _parameter_values(parameters: Mapping[str, Value], text: str) -> dict[str, Value]:
    values: dict[str, Value] = {}
    faults = []
    for name, value in parameters.items():
        if value is not None and kind_of(value) is None:
            hint = "give a string, integer, double, boolean, datetime, timespan, UUID or bytes"
            faults.append(Fault(f"parameter {name} has a value of type {type(value).__name__}", hint))
        values[name.removeprefix("@").lower()] = plain(value)
    if faults:
        raise RuleSyntaxError(faults, text)
    return values
