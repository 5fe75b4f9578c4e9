"""The steps `map`, `reduce` and `normalise`: other fields, fewer fields, another encoding."""

from __future__ import annotations

from isthmus.topology.file.document import Document, Values
from isthmus.topology.file.setting import Kind, Setting, Spec
from isthmus.topology.step.base import StepKind, check_field, on_failure

__all__ = ["ENCODINGS", "MapStep", "NormaliseStep", "ReduceStep"]

ENCODINGS = ("json", "avro", "xml", "csv")


class MapStep(StepKind):
    """`map`."""

    spec = Spec(
        "map",
        "Builds a JSON body from fields of the JSON body and properties.",
        (
            Setting(
                name="fields",
                kind=Kind.PAIRS,
                required=True,
                description="Field of the new body → the source of its value: a field of the body (`origin.name`), a property "
                "(`property:NAME`, `system:MessageId`) or a text in single quotes. A field that a message does not have is "
                "omitted. Dots nest.",
                example="{flight.carrier: carrier, priority: property:priority, source: \"'ewr'\"}",
            ),
            Setting(
                name="keep",
                kind=Kind.BOOLEAN,
                default=False,
                description="Whether the fields of the old body are kept in addition to the new ones.",
                example="true",
            ),
            *on_failure("dead-letter", "a message whose body is no JSON object (reason `StepFailed`)"),
        ),
    )

    def check(self, values: Values, document: Document) -> None:
        for name, source in (values["fields"] or {}).items():
            check_field(name, values, "fields", document)
            if not (len(source) > 1 and source[0] == source[-1] == "'"):
                check_field(source, values, "fields", document)


class ReduceStep(StepKind):
    """`reduce`."""

    spec = Spec(
        "reduce",
        "Removes fields from JSON bodies, and properties from messages. Exactly one of `keep` and `remove` is written.",
        (
            Setting(
                name="keep",
                kind=Kind.TEXTS,
                description="The fields of the body to keep; all others are removed. Properties are kept.",
                example="[carrier, flight, origin, dest]",
            ),
            Setting(
                name="remove",
                kind=Kind.TEXTS,
                description="The fields to remove; a path also passes through each element of a list; `property:NAME` is an "
                "application property.",
                example="[passenger.name, property:debug]",
            ),
            *on_failure("dead-letter", "a message whose body is no JSON object (reason `StepFailed`)"),
        ),
    )

    def check(self, values: Values, document: Document) -> None:
        if values.written("keep") == values.written("remove"):
            document.fault(values.at("remove"), "reduce needs exactly one of keep and remove", "write keep: [carrier]")
        for name in ("keep", "remove"):
            for field in values[name] or ():
                check_field(field, values, name, document)
                if (name == "keep" and ":" in field) or field.startswith("system:"):
                    document.fault(values.at(name), f"{field} is not allowed here", "write fields of the body")


class NormaliseStep(StepKind):
    """`normalise`."""

    spec = Spec(
        "normalise",
        "Converts bodies to another encoding. XML and JSON: attributes are fields with the prefix `@`, text beside them is `#text`, repeated "
        "elements are lists. An XML document with a DTD is refused. ContentType is set. Numbers that JSON does not have (NaN) "
        "are refused, and so are fields that "
        "`schema` or `columns` do not name (remove them with `reduce`), and values that do not have their type in the schema (1.5 as `int`).",
        (
            Setting(
                name="from",
                kind=Kind.CHOICE,
                choices=ENCODINGS,
                required=True,
                description="The encoding of incoming bodies.",
                example="xml",
            ),
            Setting(
                name="to",
                kind=Kind.CHOICE,
                choices=ENCODINGS,
                required=True,
                description="The encoding of outgoing bodies.",
                example="json",
            ),
            Setting(
                name="schema",
                kind=Kind.PATH,
                description="With `avro`: file of the Avro schema.",
                example="order.avsc",
            ),
            Setting(
                name="columns",
                kind=Kind.TEXTS,
                description="With `csv`: the columns of a body without a header line. Without it the first line names them.",
                example="[carrier, flight]",
            ),
            Setting(
                name="root",
                kind=Kind.TEXT,
                default="message",
                description="With `to: xml`: the document's element.",
                example="order",
            ),
            *on_failure("dead-letter", "a message whose body is not in the encoding of `from` (reason `StepFailed`)"),
        ),
    )
    paths = ("schema",)

    def check(self, values: Values, document: Document) -> None:
        if "avro" in (values["from"], values["to"]) and not values.written("schema"):
            document.fault(values.place, "avro needs a schema", "write schema: NAME.avsc")
