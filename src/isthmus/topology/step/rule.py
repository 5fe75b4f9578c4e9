"""The steps `filter` and `set`: rules of Service Bus applied by a route."""

from __future__ import annotations

from isthmus.topology.check.rule_check import check_action, check_filter
from isthmus.topology.file.document import Document, Values
from isthmus.topology.file.setting import Kind, Setting, Spec
from isthmus.topology.step.base import StepKind, on_failure

__all__ = ["FilterStep", "SetStep"]


class FilterStep(StepKind):
    """`filter`."""

    spec = Spec(
        "filter",
        "Passes the messages that an SQL filter selects. The filter reads properties, not the body.",
        (
            Setting(
                name="where",
                kind=Kind.SQL,
                required=True,
                description="The SQL filter ([the rules language](rules.md)). `filter: \"carrier = 'UA'\"` is short for this setting.",
                example="\"carrier = 'UA'\"",
            ),
            *on_failure("drop", "a message that the filter does not select (reason `Filtered`)"),
        ),
    )
    short = "where"
    changes = False

    def check(self, values: Values, document: Document) -> None:
        if values["where"]:
            check_filter(values["where"], values.at("where"), document)


class SetStep(StepKind):
    """`set`."""

    spec = Spec(
        "set",
        "Changes properties by an SQL action.",
        (
            Setting(
                name="action",
                kind=Kind.SQL,
                required=True,
                description="The SQL action: `SET` and `REMOVE` statements ([the rules language](rules.md)). "
                "`set: \"SET priority = 'high'\"` is short for this setting.",
                example="\"SET priority = 'high'\"",
            ),
            *on_failure("dead-letter", "a message on which the action fails (reason `StepFailed`)"),
        ),
    )
    short = "action"

    def check(self, values: Values, document: Document) -> None:
        if values["action"]:
            check_action(values["action"], values.at("action"), document)
