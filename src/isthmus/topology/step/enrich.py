"""The step `enrich`: columns of reference data, added to messages."""

from __future__ import annotations

from isthmus.topology.file.document import Document, Values
from isthmus.topology.file.setting import Kind, Setting, Spec
from isthmus.topology.step.base import StepKind, check_field, on_failure

__all__ = ["EnrichStep", "join_of"]


def join_of(text: str) -> tuple[str, str]:
    """Field of the message and column of the reference data of `dest = faa`; empty strings where the text is malformed."""
    left, _, right = text.partition("=")
    return left.strip(), right.strip()


class EnrichStep(StepKind):
    """`enrich`."""

    spec = Spec(
        "enrich",
        "Adds columns of reference data to JSON bodies. The data is held in memory by each worker and read again within "
        "seconds after its file has changed.",
        (
            Setting(
                name="from",
                kind=Kind.PATH,
                required=True,
                description="File of the reference data: CSV with a header line, or Parquet with a name that ends in `.parquet`. An empty "
                "cell of a CSV file is null; `NA` is null among numbers, and a text among texts and keys. A column of numbers that a number "
                "would not show as they are written (01234, 20 digits) is one of texts.",
                example="airports.csv",
            ),
            Setting(
                name="on",
                kind=Kind.TEXT,
                required=True,
                description="`FIELD = COLUMN`: the field of the message that is looked up, and the column that it is looked up in. Of "
                "several rows with the same value the last counts.",
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
                description="Put in front of the names of the added fields.",
                example="dest_",
            ),
            Setting(
                name="missing",
                kind=Kind.CHOICE,
                choices=("keep", "fail"),
                default="keep",
                description="A message whose value is not in the reference data. `keep`: it gets no field; `fail`: it is treated as "
                "`on_failure` says (reason `NoReferenceData`).",
                example="fail",
            ),
            on_failure("dead-letter", "a message that cannot be enriched"),
        ),
    )
    paths = ("from",)

    def check(self, values: Values, document: Document) -> None:
        if values["on"]:
            field, column = join_of(values["on"])
            if not field or not column:
                document.fault(values.at("on"), "on has not the form FIELD = COLUMN", "write on: dest = faa")
            else:
                check_field(field, values, "on", document)
