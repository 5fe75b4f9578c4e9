"""What can be said about a filter without a message.

What it is: which properties a filter reads, whether it can ever select a message, and which properties it
requires. `replicated <> 1` alone needs the property `replicated`: a message without the mark is unknown to it, so that a
rule meant for unmarked messages selects none of them. Lint and plan say so.

How: a verdict on properties that are compared with constants depends only on where each value is between them (see
`region`). So every property is tried as missing, null, and with one value of every region; a condition that this does
not decide (LIKE, arithmetic, two properties compared) counts as "anything" unless a property in it is missing.

Invariants:
    I1. The answer "never" is always true. A filter that cannot match for another reason may not be found.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Final, TypeAlias

from isthmus.rules.analysis.region import regions_of
from isthmus.rules.error import FilterError
from isthmus.rules.evaluation.closure import compile_predicate
from isthmus.rules.syntax.tree import (
    And,
    Comparison,
    Constant,
    Exists,
    Expression,
    In,
    IsNull,
    NewId,
    Node,
    Not,
    Or,
    Parameter,
    Predicate,
    Property,
    PropertyOf,
    children,
    render,
)
from isthmus.rules.system import SYSTEM_PROPERTIES
from isthmus.rules.value import MISSING, Missing, Value, all_of, any_of, negated

__all__ = ["needs_property", "never_matches", "properties", "required_properties"]

Verdicts: TypeAlias = frozenset[bool | None]
_Key: TypeAlias = tuple[str, str]

_ANY: Final[Verdicts] = frozenset({True, False, None})
_UNKNOWN: Final[Verdicts] = frozenset({None})
# A filter has at most 1,024 characters, so only a generated filter reaches these bounds.
_MAX_ASSIGNMENTS: Final = 4096
_MAX_NARROW: Final = 7
# A value that is present and not null, and of which nothing else is known.
_SOME: Final = object()


def properties(tree: Node) -> list[Property]:
    """The properties that a tree names, each once, in the order of the text; ``property(…)`` names none."""
    found: dict[_Key, Property] = {}
    for node in _walk(tree):
        if isinstance(node, Property):
            found.setdefault(_key(node), node)
    return list(found.values())


def never_matches(tree: Predicate, parameters: Mapping[str, Value] | None = None) -> str | None:
    """Why a filter can select no message at all; None if it may select some.

    Args:
        tree: the filter.
        parameters: values of its parameters, by name in any case, with or without ``@``.
    """
    analysis = _Analysis(tree, parameters)
    possible = analysis.verdicts({})
    if True in possible:
        return None
    shown = render(tree)
    if not analysis.regions:
        return (
            f"{shown} is {'unknown' if possible == _UNKNOWN else 'false'} whatever the message, so it selects nothing"
        )
    for part in tree.operands if isinstance(tree, And) else ():
        if True not in _Analysis(part, parameters).verdicts({}):
            return f"{render(part)} is never true, so {shown} selects nothing"
    names = [render(one) for one in properties(tree)]
    listed = names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]
    return f"no value of {listed} makes {shown} true, so it selects nothing"


def needs_property(
    tree: Predicate, name: str, scope: str = "user", parameters: Mapping[str, Value] | None = None
) -> str | None:
    """Why a filter selects no message that lacks a property; None if it may select one.

    Args:
        tree: the filter.
        name: the property's name; of a user property in any case, of a system property canonical.
        scope: ``user`` or ``sys``.
        parameters: as for `never_matches`.
    """
    key = (scope, name.lower() if scope == "user" else name)
    analysis = _Analysis(tree, parameters)
    if key not in analysis.regions or True in analysis.verdicts({key: (MISSING,)}):
        return None
    wanted = next(one for one in properties(tree) if _key(one) == key)
    shown, lacking = render(tree), f"a message without {render(wanted)}"
    if isinstance(tree, Comparison) and tree.operation == "<>":
        return (
            f"{shown} is unknown for {lacking}, so it does not select it; "
            f"write {render(wanted)} IS NULL OR {shown} to take messages without the property too"
        )
    return f"{shown} is never true for {lacking}"


def required_properties(tree: Predicate, parameters: Mapping[str, Value] | None = None) -> list[Property]:
    """The properties that a message must have for a filter to select it."""
    return [one for one in properties(tree) if needs_property(tree, one.key, one.scope, parameters) is not None]


class _Assigned:
    """A view of one assignment of values to properties."""

    def __init__(self, values: Mapping[_Key, Value | Missing]) -> None:
        self._values = values

    def user(self, name: str, /) -> Value | Missing:
        return self._values[("user", name)]

    def sys(self, name: str, /) -> Value | Missing:
        return self._values[("sys", name)]


class _Analysis:
    def __init__(self, tree: Predicate, parameters: Mapping[str, Value] | None) -> None:
        self.tree = tree
        self.parameters = {name.removeprefix("@").lower(): value for name, value in (parameters or {}).items()}
        self.regions: dict[_Key, tuple[object, ...]] = {}
        for one in properties(tree):
            kind = SYSTEM_PROPERTIES[one.name].kind if one.scope == "sys" else None
            absent: tuple[object, ...] = (MISSING,) if one.scope == "sys" else (MISSING, None)
            self.regions[_key(one)] = (*absent, *regions_of(list(self._constants_of(_key(one))), kind))

    def verdicts(self, fixed: Mapping[_Key, tuple[object, ...]]) -> Verdicts:
        """Every result that the filter may have, with some properties fixed; a failing evaluation is unknown."""
        regions = {key: fixed.get(key, values) for key, values in self.regions.items()}
        if math.prod(map(len, regions.values())) > _MAX_ASSIGNMENTS:
            narrow = [key for key in regions if key not in fixed][:_MAX_NARROW]
            regions = {
                key: fixed.get(key, (MISSING, _SOME) if key[0] == "sys" else (MISSING, None, _SOME))
                for key in (*fixed, *narrow)
            }
        found: set[bool | None] = set()
        for chosen in itertools.product(*regions.values()):
            found |= self._possible(self.tree, dict(zip(regions, chosen, strict=True)))
            if len(found) == len(_ANY):
                break
        return frozenset(found)

    def _possible(self, tree: Predicate, assignment: Mapping[_Key, object]) -> Verdicts:
        match tree:
            case Not(operand):
                return frozenset(negated(one) for one in self._possible(operand, assignment))
            case And(operands) | Or(operands):
                join = all_of if isinstance(tree, And) else any_of
                found = self._possible(operands[0], assignment)
                for operand in operands[1:]:
                    more = self._possible(operand, assignment)
                    found = frozenset(join(left, right) for left in found for right in more)
                return found
        return self._condition(tree, assignment)

    def _condition(self, tree: Predicate, assignment: Mapping[_Key, object]) -> Verdicts:
        values: dict[_Key, Value | Missing] = {}
        for one in properties(tree):
            value = assignment.get(_key(one), _SOME)
            if value is _SOME:
                return self._of_some(tree, one, assignment)
            values[_key(one)] = value  # type: ignore[assignment]  # _SOME is the only other object
        if not self._decided(tree):
            return _UNKNOWN if self._lacks_operand(tree, values) else _ANY
        try:
            return frozenset({compile_predicate(tree, self.parameters)(_Assigned(values))})
        except FilterError:
            return _UNKNOWN

    def _of_some(self, tree: Predicate, unknown: Property, assignment: Mapping[_Key, object]) -> Verdicts:
        if _key(unknown) not in assignment or not isinstance(tree, IsNull | Exists):
            return _ANY
        return frozenset({isinstance(tree, Exists) or tree.negated})

    def _decided(self, tree: Predicate) -> bool:
        """Whether regions decide a condition: it is constant, or compares properties with constants one by one."""
        match tree:
            case IsNull() | Exists():
                return True
            case Comparison(_, Property(), other) | Comparison(_, other, Property()):
                return _is_fixed(other)
            case In(Property(), items, _):
                return all(map(_is_fixed, items))
        return not any(isinstance(node, Property | PropertyOf | NewId) for node in _walk(tree))

    def _lacks_operand(self, tree: Predicate, values: Mapping[_Key, Value | Missing]) -> bool:
        """Whether a missing property makes a condition unknown: any in it, for IN any on the left side."""
        part = tree.operand if isinstance(tree, In) else tree
        return any(values[_key(one)] in (MISSING, None) for one in properties(part))

    def _constants_of(self, key: _Key) -> Iterator[Value]:
        """The constants that a property is compared with."""
        for node in _walk(self.tree):
            match node:
                case Comparison(_, Property() as side, other) | Comparison(_, other, Property() as side):
                    if _key(side) == key and _is_fixed(other):
                        yield self._value(other)
                case In(Property() as side, items, _) if _key(side) == key:
                    yield from (self._value(item) for item in items if _is_fixed(item))

    def _value(self, tree: Expression) -> Value:
        if isinstance(tree, Parameter):
            return self.parameters[tree.name.lower()]
        return tree.value if isinstance(tree, Constant) else None


def _key(node: Property) -> _Key:
    return node.scope, node.key


def _is_fixed(tree: Expression) -> bool:
    return isinstance(tree, Constant | Parameter)


def _walk(tree: Node) -> Iterator[Node]:
    """All nodes in the order of the text."""
    pending: list[Node] = [tree]
    while pending:
        node = pending.pop()
        yield node
        pending.extend(reversed(children(node)))
