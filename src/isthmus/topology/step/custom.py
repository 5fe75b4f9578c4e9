"""The steps `python` and `sql`: processing that the other steps do not have."""

from __future__ import annotations

import re

from isthmus.message.column import COLUMNS
from isthmus.topology.file.document import Document, Values
from isthmus.topology.file.setting import Kind, Setting, Spec
from isthmus.topology.step.base import StepKind, on_failure
from isthmus.topology.step.divert import DIVERT

__all__ = ["PythonStep", "SqlStep"]

_FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_SELECT = re.compile(r"\s*select\s", re.IGNORECASE)
_DISTINCT = re.compile(r"\s*select\s+distinct\b", re.IGNORECASE)
_ROWS = re.compile(r"\bfrom\s+rows\b", re.IGNORECASE)


class PythonStep(StepKind):
    """`python`."""

    spec = Spec(
        "python",
        "A function of your own. `python: package.module:function` is short for `function`.",
        (
            Setting(
                name="function",
                kind=Kind.TEXT,
                required=True,
                description="`package.module:function`; the module has to be importable where `isthmus run` runs and, on a cluster, at the "
                "workers.",
                example="orders.steps:mask",
            ),
            Setting(
                name="takes",
                kind=Kind.CHOICE,
                choices=("rows", "message"),
                default="rows",
                description="`rows`: the function takes a DataFrame and returns one, by columns of Spark's own functions: without a shuffle, without "
                "removing rows, without Python UDFs. `message`: it takes one message as an object with `body`, `json`, `properties` and `application_properties`, "
                "changes it, and returns nothing, or a pair of disposition (`complete`, `dead-letter`, with "
                "`divert_to` also `divert`) and reason; an error that it raises sets that "
                "message aside.",
                example="message",
            ),
            Setting(
                name="columns",
                kind=Kind.TEXTS,
                description="With `takes: rows`: the columns that the function needs beside `message`, `route` and `position`; by default "
                "`body`. Its changes to them are written into the message.",
                example="[body, subject, application_properties]",
            ),
            *on_failure("dead-letter", "a message on which the function fails (reason `StepFailed`)"),
        ),
    )
    short = "function"

    def check(self, values: Values, document: Document) -> None:
        if values["function"] and not _FUNCTION.fullmatch(values["function"]):
            document.fault(
                values.at("function"), "function has not the form package.module:function", "write orders.steps:mask"
            )
        if values["on_failure"] == DIVERT and values["takes"] != "message":
            document.fault(
                values.at("on_failure"),
                "on_failure: divert needs takes: message: a function of rows decides itself",
                "write takes: message, or a step filter or validate after it that diverts",
            )
        for name in values["columns"] or ():
            if name not in COLUMNS:
                document.fault(
                    values.at("columns"), f"no message has a column {name!r}", f"write some of {', '.join(COLUMNS)}"
                )


class SqlStep(StepKind):
    """`sql`."""

    spec = Spec(
        "sql",
        'Changes messages by a SELECT of Spark SQL. `sql: "SELECT …"` is short for `select`.',
        (
            Setting(
                name="select",
                kind=Kind.TEXT,
                required=True,
                description="`SELECT … FROM rows`, without a shuffle and without removing rows. Each column of the result has "
                "the name of a column "
                "that a message has and is written into the message, or is `disposition` (`complete`, `dead-letter`, null), "
                "`reason` or `description`.",
                example='"SELECT upper(subject) AS subject FROM rows"',
            ),
        ),
    )
    short = "select"

    def check(self, values: Values, document: Document) -> None:
        text = values["select"]
        if not text:
            return
        if not _SELECT.match(text) or _DISTINCT.match(text):
            document.fault(values.at("select"), "sql does not begin with SELECT", 'write sql: "SELECT … FROM rows"')
        elif not _ROWS.search(text):
            document.fault(values.at("select"), "sql selects nothing from rows", 'write sql: "SELECT … FROM rows"')
