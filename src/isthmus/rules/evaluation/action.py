"""Actions: what SET and REMOVE change on a message's copy.

What it is: an action compiled to a function that reads a view and returns the changes; later statements see what
earlier ones changed. What it is not: the message's encoding; the caller makes the changes in the message.

Spec: docs/explanation/protocol.md, Filter language; Microsoft Learn, "Subscription Rule SQL Action Syntax".

Invariants:
    I1. An action that fails changes nothing.
    I2. A number that replaces a number takes the type of the old one if no digit is lost by it.
    I3. A system property gets a value of its own type, or the action fails.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from isthmus.rules.evaluation.closure import Evaluator, compile_expression
from isthmus.rules.evaluation.conversion import converted, like_existing
from isthmus.rules.syntax.tree import Constant, Remove, Set, Statement
from isthmus.rules.system import SYSTEM_PROPERTIES, canonical_name
from isthmus.rules.value import MISSING, Missing, Value, plain
from isthmus.rules.view import View

__all__ = ["REMOVED", "Assignment", "Changes", "Removed", "compile_action"]


class Removed(enum.Enum):
    """The type of REMOVED."""

    REMOVED = "removed"

    def __repr__(self) -> str:
        return "REMOVED"


REMOVED: Final = Removed.REMOVED


class Assignment(NamedTuple):
    """What becomes of one user property.

    Attributes:
        name: the name as the action spells it, for a property that is new; one that exists keeps its spelling.
        value: its value (None is null), or REMOVED.
    """

    name: str
    value: Value | Removed


@dataclass(slots=True)
class Changes:
    """What an action changes, in the order in which it first touched each property.

    Attributes:
        user: by lower-case name.
        sys: by canonical name; REMOVED also where the action assigned null.
    """

    user: dict[str, Assignment] = field(default_factory=dict)
    sys: dict[str, Value | Removed] = field(default_factory=dict)

    def apply_to(self, sys: MutableMapping[str, Value], user: MutableMapping[str, Value]) -> None:
        """Makes the changes in dicts of system and user properties, whose names keep their spelling."""
        spelt = {canonical_name(name) or name: name for name in sys}
        for name, value in self.sys.items():
            if value is REMOVED:
                sys.pop(spelt.get(name, name), None)
            else:
                sys[spelt.get(name, name)] = value
        present: dict[str, str] = {}
        for name in user:
            present.setdefault(name.lower(), name)
        for key, (name, value) in self.user.items():
            if value is REMOVED:
                user.pop(present.get(key, name), None)
            else:
                user[present.get(key, name)] = value


class _Changed:
    """A view of a message with the changes made so far."""

    __slots__ = ("_changes", "_view")

    def __init__(self, view: View, changes: Changes) -> None:
        self._view = view
        self._changes = changes

    def user(self, name: str, /) -> Value | Missing:
        assignment = self._changes.user.get(name)
        if assignment is None:
            return self._view.user(name)
        return MISSING if assignment.value is REMOVED else assignment.value

    def sys(self, name: str, /) -> Value | Missing:
        if name not in self._changes.sys:
            return self._view.sys(name)
        value = self._changes.sys[name]
        return MISSING if value is REMOVED else value


_Step: TypeAlias = Callable[[View, Changes], None]


def compile_action(statements: tuple[Statement, ...], parameters: Mapping[str, Value]) -> Callable[[View], Changes]:
    """Compiles an action to a function from a view to changes.

    The function raises FilterError where an expression fails or a system property cannot take a value.
    """
    steps = tuple(_step(statement, parameters) for statement in statements)
    if len(steps) == 1:
        only = steps[0]

        def apply_one(view: View) -> Changes:
            changes = Changes({}, {})
            only(view, changes)
            return changes

        return apply_one

    def apply(view: View) -> Changes:
        changes = Changes()
        changed = _Changed(view, changes)
        for step in steps:
            step(changed, changes)
        return changes

    return apply


def _step(statement: Statement, parameters: Mapping[str, Value]) -> _Step:
    target = statement.target
    if isinstance(statement, Set):
        value_of = compile_expression(statement.value, parameters)
        if target.scope == "sys":
            return _set_system(target.name, value_of)
        if isinstance(statement.value, Constant):
            return _set_user_constant(target.key, target.name, statement.value.value)
        return _set_user(target.key, target.name, value_of)
    assert isinstance(statement, Remove)
    key, name = target.key, target.name
    removal = Assignment(name, REMOVED)

    def remove_user(view: View, changes: Changes) -> None:
        changes.user[key] = removal

    def remove_system(view: View, changes: Changes) -> None:
        changes.sys[name] = REMOVED

    return remove_system if target.scope == "sys" else remove_user


def _set_user_constant(key: str, name: str, value: Value) -> _Step:
    """The most frequent statement of actions, e.g. the mark of a copy."""
    exact = type(value)
    assignment = Assignment(name, value)

    def step(view: View, changes: Changes) -> None:
        existing = view.user(key)
        if existing is MISSING or type(existing) is exact:
            changes.user[key] = assignment
        else:
            changes.user[key] = Assignment(name, like_existing(value, existing))

    return step


def _set_user(key: str, name: str, value_of: Evaluator) -> _Step:
    def step(view: View, changes: Changes) -> None:
        value = plain(value_of(view))
        changes.user[key] = Assignment(name, like_existing(value, view.user(key)))

    return step


def _set_system(name: str, value_of: Evaluator) -> _Step:
    kind = SYSTEM_PROPERTIES[name].kind

    def step(view: View, changes: Changes) -> None:
        value = plain(value_of(view))
        changes.sys[name] = REMOVED if value is None else converted(value, kind, name)

    return step
