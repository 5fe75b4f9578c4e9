"""The step `validate`: a schema for bodies."""

from __future__ import annotations

from isthmus.topology.file.document import Document, Values
from isthmus.topology.file.setting import Kind, Setting, Spec
from isthmus.topology.step.base import StepKind, on_failure

__all__ = ["ValidateStep"]


class ValidateStep(StepKind):
    """`validate`."""

    spec = Spec(
        "validate",
        "Passes messages whose body is valid by a schema. A changed schema file is read again within seconds.",
        (
            Setting(
                name="schema",
                kind=Kind.PATH,
                required=True,
                description="File of the schema: a JSON Schema, or an Avro schema with a name that ends in `.avsc`.",
                example="order.schema.json",
            ),
            Setting(
                name="encoding",
                kind=Kind.CHOICE,
                choices=("json", "avro"),
                default="json",
                description="The encoding of bodies. `avro`: one datum in Avro's binary encoding, without a header; with an Avro schema "
                "only.",
                example="json",
            ),
            *on_failure("dead-letter", "a message that is not valid (reason `ValidationFailed`)"),
        ),
    )
    short = "schema"
    paths = ("schema",)
    changes = False

    def check(self, values: Values, document: Document) -> None:
        if values["encoding"] == "avro" and values["schema"] and not values["schema"].endswith(".avsc"):
            document.fault(values.at("encoding"), "encoding: avro needs an Avro schema", "write schema: NAME.avsc")
