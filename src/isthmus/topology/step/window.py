"""The steps `deduplicate` and `aggregate`, which process several messages together."""

from __future__ import annotations

import re

from isthmus.topology.file.document import Document, Values
from isthmus.topology.file.setting import Kind, Setting, Spec
from isthmus.topology.step.base import StepKind, check_field, on_failure

__all__ = ["FUNCTION", "AggregateStep", "DeduplicateStep", "result_name"]

_DAY_MS = 86_400_000
FUNCTION = re.compile(r"(count|sum|avg|min|max)\(\s*([^()]+?)\s*\)|count")
"""The function of a window over a field."""

_INTERVAL = Setting(
    name="interval",
    kind=Kind.DURATION,
    default=1_000,
    minimum=100,
    maximum=3_600_000,
    description="Interval at which messages are read from the spool. The step adds this interval and about half a second to their latency.",
    example="1s",
)
_SPOOL = Setting(
    name="spool",
    kind=Kind.PATH,
    description="Folder for the spools of each route; default: `spools` in the state folder of the run. If executors "
    "of Spark are on other machines, it has to be on storage that all of them share under one path.",
    example="/var/spool/isthmus",
)


def result_name(by: str) -> str:
    """The field of a result with a value of `by`."""
    return by.removeprefix("property:").removeprefix("system:")


class DeduplicateStep(StepKind):
    """`deduplicate`."""

    spec = Spec(
        "deduplicate",
        "Passes the first of the messages that have the same MessageId, or the same field, within a window. `deduplicate: 10m` is short for "
        "`window`. The route reads through a durable spool ([the spool](../explanation/spool.md)).",
        (
            Setting(
                name="window",
                kind=Kind.DURATION,
                required=True,
                minimum=1_000,
                maximum=30 * _DAY_MS,
                description="How long a message is remembered, by enqueued times: at least this long, and some batches longer.",
                example="10m",
            ),
            Setting(
                name="by",
                kind=Kind.TEXT,
                default="system:MessageId",
                description="The key by which messages are compared: `system:MessageId`, `property:NAME`, or a field of the "
                "JSON body. A message that has "
                "no key passes.",
                example="property:booking",
            ),
            _INTERVAL,
            _SPOOL,
        ),
    )
    short = "window"
    folders = ("spool",)
    changes = False
    shuffles = True

    def check(self, values: Values, document: Document) -> None:
        if values["by"]:
            check_field(values["by"], values, "by", document)


class AggregateStep(StepKind):
    """`aggregate`."""

    spec = Spec(
        "aggregate",
        "Replaces all messages of a window by one message, with a JSON body of counts and sums. The route reads through a durable "
        "spool ([the spool](../explanation/spool.md)).",
        (
            Setting(
                name="window",
                kind=Kind.DURATION,
                required=True,
                minimum=1_000,
                maximum=30 * _DAY_MS,
                description="The length of a window. Windows begin at multiples of it since 1970, in UTC; a message belongs "
                "to one by its enqueued "
                "time.",
                example="5m",
            ),
            Setting(
                name="fields",
                kind=Kind.PAIRS,
                required=True,
                description="Field of the result → its function: `count`, or `count`, `sum`, `avg`, `min` or `max` of a field "
                "of the JSON body "
                "or of a property. Messages without the field are ignored there.",
                example="{flights: count, delay: avg(dep_delay)}",
            ),
            Setting(
                name="by",
                kind=Kind.TEXTS,
                description="Fields of the JSON body, or `property:NAME`: each combination of values gets its own result.",
                example="[carrier, property:region]",
            ),
            Setting(
                name="wait",
                kind=Kind.DURATION,
                default=60_000,
                minimum=1_000,
                maximum=_DAY_MS,
                description="How much later than others a message may arrive and still count in the window of its own time; "
                "later, it counts in the "
                "oldest window that is open. A window's result is sent this long after its end, or later.",
                example="1m",
            ),
            *on_failure(
                "dead-letter",
                "a message without a field of `by`, or with one in `fields` that is no number (reason `StepFailed`)",
            ),
            _INTERVAL,
            _SPOOL,
        ),
    )
    folders = ("spool",)
    shuffles = True

    def check(self, values: Values, document: Document) -> None:
        for name in values["by"] or ():
            check_field(name, values, "by", document)
        if values.written("fields") and not values["fields"]:
            document.fault(values.at("fields"), "fields is empty", "write fields: {flights: count}")
        taken = {"window_start": "window_start", "window_end": "window_end"}
        for name, shown in [(each, result_name(each)) for each in values["by"] or ()] + [
            (each, each) for each in values["fields"] or {}
        ]:
            if shown in taken:
                document.fault(
                    values.at("fields"),
                    f"the field {shown} of the result would contain {taken[shown]} and {name}",
                    "give the field another name" if name in (values["fields"] or {}) else "write one of them",
                )
            taken[shown] = name
        for text in (values["fields"] or {}).values():
            match = FUNCTION.fullmatch(text.strip())
            if match is None:
                document.fault(
                    values.at("fields"),
                    f"{text!r} is no function of a window",
                    "write count, or count, sum, avg, min or max with a field: avg(dep_delay)",
                )
            elif match[2]:
                check_field(match[2], values, "fields", document)
