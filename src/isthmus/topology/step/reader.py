"""The reader of the setting `steps` of a task.

What it is: a list of one-key mappings to declarations, every fault with its position. What it is not: the check of files that they name
(`isthmus.topology.step.material`).
"""

from __future__ import annotations

from typing import Any

import yaml

from isthmus.topology.file.document import Document, Values, suggest
from isthmus.topology.file.setting import Setting, SettingError
from isthmus.topology.step import STEPS, StepDeclaration, StepKind, shuffles
from isthmus.topology.step.divert import DIVERT_TO, read_divert
from isthmus.topology.step.order import changed_before_divert, in_between

__all__ = ["read_steps"]

_EXAMPLE = "write steps: [{filter: \"carrier = 'UA'\"}]"


def read_steps(node: Any, document: Document) -> tuple[StepDeclaration, ...]:
    """The steps that a task declares; faulty ones are omitted."""
    if node is None:
        return ()
    if not isinstance(node, yaml.SequenceNode):
        document.fault(document.place(node), "steps is not a list", _EXAMPLE)
        return ()
    found = tuple(step for item in node.value if (step := _step(item, document)) is not None)
    gathering = [step for step in found if shuffles(step)]
    if len(gathering) > 1:
        document.fault(
            gathering[1].place,
            f"there are two steps that process several messages together: {gathering[0]} and {gathering[1]}",
            "write a second task for the second, which reads an entity that the first one sends to",
        )
    wrong = in_between(found)
    if wrong is not None:
        document.fault(
            wrong.place,
            f"the step {wrong} is between two steps that work on DataFrames (python, sql), where only filter is allowed",
            "put it before or after both, or write takes: message",
        )
    late = changed_before_divert(found)
    if late is not None:
        document.fault(
            late.at("on_failure"),
            f"the step {late} cannot divert messages as they were received: a step before python or sql has changed them already",
            "put it before that step, or put the steps that change messages after python and sql",
        )
    return found


def _step(node: Any, document: Document) -> StepDeclaration | None:
    pairs = document.pairs(node, "step") if isinstance(node, yaml.MappingNode) else {}
    if len(pairs) != 1:
        document.fault(document.place(node), "a step is a mapping with one key, its kind", _EXAMPLE)
        return None
    ((name, (key, value)),) = pairs.items()
    kind = STEPS.get(name)
    if kind is None:
        document.fault(document.place(key), f"there is no step {name!r}", suggest(name, tuple(STEPS)))
        return None
    before = len(document.faults)
    values = _values(kind, value, document)
    if kind.spec.get(DIVERT_TO.name) is not None:
        values.values[DIVERT_TO.name] = read_divert(values, document)
    if len(document.faults) == before:
        kind.check(values, document)
    if len(document.faults) > before:
        return None
    settings = {name: _plain(each) for name, each in values.values.items() if each is not None}
    return StepDeclaration(name, settings, document.place(key), dict(values.places))


def _values(kind: StepKind, node: Any, document: Document) -> Values:
    what = f"step {kind.spec.name}"
    if isinstance(node, yaml.ScalarNode) and kind.short and not document.is_empty(node):
        setting = kind.spec.get(kind.short)
        assert isinstance(setting, Setting)
        values = Values(document.place(node))
        values.values = {each.name: each.default for each in kind.spec.settings}
        values.places[setting.name] = document.place(node)
        try:
            values.values[setting.name] = setting.parse(document.scalar(setting, node))
        except SettingError as wrong:
            document.fault(document.place(node), wrong.message, wrong.hint)
        return values
    if not isinstance(node, yaml.MappingNode):
        names = ", ".join(each.name for each in kind.spec.settings if each.required) or "its settings"
        document.fault(document.place(node), f"{what} needs a mapping", f"write {kind.spec.name}: with {names}")
        return Values(document.place(node))
    return document.settings(node, kind.spec, what)


def _plain(value: Any) -> Any:
    """The value for JSON: references as text, tuples as lists."""
    if isinstance(value, tuple):
        return list(value)
    return value if isinstance(value, (str, int, float, bool, dict)) else str(value)
