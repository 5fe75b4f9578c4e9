"""The step `enrich`: columns of reference data, added to messages."""

from __future__ import annotations

from isthmus.topology.file.document import Document, Values
from isthmus.topology.file.setting import Kind, Setting, Spec
from isthmus.topology.step.base import StepKind, check_field, on_failure

__all__ = ["EVERY_MS", "EnrichStep", "join_of"]

EVERY_MS = 60_000
"""Interval after which reference data of a database is read again."""


def join_of(text: str) -> tuple[str, str]:
    """Field of the message and column of the reference data of `dest = faa`; empty strings if the text is malformed."""
    left, _, right = text.partition("=")
    return left.strip(), right.strip()


class EnrichStep(StepKind):
    """`enrich`."""

    spec = Spec(
        "enrich",
        "Adds columns of reference data to JSON bodies. Each worker keeps the data in memory and reads it again within "
        "seconds after its file has changed, or at intervals from a database.",
        (
            Setting(
                name="from",
                kind=Kind.PATH,
                description="File of the reference data; exactly one of `from` and `database` is written. It is CSV with a header line, or Parquet with a name that ends in `.parquet`. An empty "
                "cell of a CSV file is null; `NA` is null among numbers, and a text among texts and keys. A column of numbers that a number "
                "would not represent as written (01234, 20 digits) is a column of texts.",
                example="airports.csv",
            ),
            Setting(
                name="database",
                kind=Kind.REFERENCE,
                description="A reference (`env:`, `file:`, `keyvault:`) to the URL of a database, as SQLAlchemy writes it: "
                "`postgresql+pg8000://user:password@host/name`. Needs the extra `sql`, and the database's driver where routes run.",
                example="env:AIRPORTS_DATABASE",
            ),
            Setting(
                name="query",
                kind=Kind.TEXT,
                description="With `database`: the SELECT whose rows are the reference data. It uses a new connection each time.",
                example="SELECT faa, name, lat FROM airports",
            ),
            Setting(
                name="every",
                kind=Kind.DURATION,
                default=EVERY_MS,
                minimum=1_000,
                description="With `database`: interval after which it is read again. Messages do not wait for that; if it "
                "cannot be read, the data that was "
                "read last stays in use.",
                example="5m",
            ),
            Setting(
                name="on",
                kind=Kind.TEXT,
                required=True,
                description="`FIELD = COLUMN`: the field of the message that is looked up, and the column that it is looked up in. For "
                "several rows with the same value, the last one is used.",
                example="dest = faa",
            ),
            Setting(
                name="columns",
                kind=Kind.TEXTS,
                required=True,
                description="The columns to add, as fields of the JSON body.",
                example="[name, lat]",
            ),
            Setting(
                name="prefix",
                kind=Kind.TEXT,
                description="Prefix of the names of the added fields.",
                example="dest_",
            ),
            Setting(
                name="missing",
                kind=Kind.CHOICE,
                choices=("keep", "fail"),
                default="keep",
                description="The treatment of a message whose value is not in the reference data. `keep`: it gets no field; "
                "`fail`: it is treated "
                "according to `on_failure` (reason `NoReferenceData`).",
                example="fail",
            ),
            *on_failure("dead-letter", "a message that cannot be enriched"),
        ),
    )
    paths = ("from",)
    references = ("database",)

    def check(self, values: Values, document: Document) -> None:
        has_database = values.written("database")
        if values.written("from") == has_database:
            place = values.at("database") if has_database else values.place
            document.fault(
                place, "an enrich has either a file or a database", "write from: FILE, or database: and query:"
            )
        elif has_database and not values.written("query"):
            document.fault(
                values.at("database"), "there is a database without a query", "write query: SELECT ... FROM ..."
            )
        for name in ("query", "every"):
            if values.written(name) and not has_database:
                document.fault(values.at(name), f"{name} needs a database, and there is none", f"remove {name}")
        if values["on"]:
            field, column = join_of(values["on"])
            if not field or not column:
                document.fault(values.at("on"), "on has not the form FIELD = COLUMN", "write on: dest = faa")
            else:
                check_field(field, values, "on", document)
