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
        "Makes a JSON body of fields of the JSON body and of properties.",
        (
            Setting(
                name="fields",
                kind=Kind.PAIRS,
                required=True,
                description="Field of the new body → where its value comes from: a field of the body (`origin.name`), a property "
                "(`property:NAME`, `system:MessageId`) or a text in single quotes. A field that a message has not got is left "
                "out. Dots nest.",
                example="{flight.carrier: carrier, priority: property:priority, source: \"'ewr'\"}",
            ),
            Setting(
                name="keep",
                kind=Kind.BOOLEAN,
                default=False,
                description="Whether the fields of the old body stay beside the new ones.",
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
        "Takes fields out of JSON bodies, and properties off messages. Exactly one of `keep` and `remove` is written.",
        (
            Setting(
                name="keep",
                kind=Kind.TEXTS,
                description="The fields of the body that stay; all others go. Properties stay.",
                example="[carrier, flight, origin, dest]",
            ),
            Setting(
                name="remove",
                kind=Kind.TEXTS,
                description="The fields that go, on the way to them also those of each element of a list; `property:NAME` is an application property.",
                example="[passenger.name, property:debug]",
            ),
            *on_failure("dead-letter", "a message whose body is no JSON object (reason `StepFailed`)"),
        ),
    )

    def check(self, values: Values, document: Document) -> None:
        if values.written("keep") == values.written("remove"):
            document.fault(values.at("remove"), "reduce takes exactly one of keep and remove", "write keep: [carrier]")
        for name in ("keep", "remove"):
            for field in values[name] or ():
                check_field(field, values, name, document)
                if (name == "keep" and ":" in field) or field.startswith("system:"):
                    document.fault(values.at(name), f"{field} is not allowed here", "write fields of the body")


class NormaliseStep(StepKind):
    """`normalise`."""

    spec = Spec(
        "normalise",
        "Writes bodies in another encoding. XML and JSON: attributes are fields with `@` in front, text beside them is `#text`, elements "
        "that repeat are lists. An XML document with a DTD is refused. ContentType is set. Numbers that JSON has not (NaN) are refused, and so are a field that "
        "`schema` or `columns` do not name, which `reduce` takes out, and a value that is none of its type in the schema (1.5 as `int`).",
        (
            Setting(
                name="from",
                kind=Kind.CHOICE,
                choices=ENCODINGS,
                required=True,
                description="The encoding of the bodies that come.",
                example="xml",
            ),
            Setting(
                name="to",
                kind=Kind.CHOICE,
                choices=ENCODINGS,
                required=True,
                description="The encoding of the bodies that go on.",
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
            *on_failure("dead-letter", "a message whose body is not what `from` says (reason `StepFailed`)"),
        ),
    )
    paths = ("schema",)

    def check(self, values: Values, document: Document) -> None:
        if "avro" in (values["from"], values["to"]) and not values.written("schema"):
            document.fault(values.place, "avro needs a schema", "write schema: NAME.avsc")
