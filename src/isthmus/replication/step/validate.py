"""The step `validate`.

Specification: JSON Schema draft 2020-12 (and earlier drafts, according to `$schema`); Apache Avro 1.11.
"""

from __future__ import annotations

import io
from typing import Any

from isthmus.bridge.delivery_event import Disposition
from isthmus.replication.step.base import MessageStep, Settings, StepRefusalError
from isthmus.replication.step.message.message import StepMessage
from isthmus.replication.step.watched_file import WatchedFile
from isthmus.topology.step.material import load_avro_schema, load_json_schema

__all__ = ["VALIDATION_FAILED", "open_validate"]

VALIDATION_FAILED = "ValidationFailed"


def open_validate(settings: Settings) -> MessageStep:
    """See `isthmus.topology.step.validate.ValidateStep`."""
    if not settings["schema"].endswith(".avsc"):
        return _json_schema(settings["schema"])
    return _avro_binary(settings["schema"]) if settings["encoding"] == "avro" else _avro_json(settings["schema"])


def _json_schema(path: str) -> MessageStep:
    schema = WatchedFile(path, load_json_schema)

    def step(message: StepMessage) -> Disposition | None:
        validator = schema.get()
        instance = _json_of(message)
        if not validator.is_valid(instance):
            error = next(iter(validator.iter_errors(instance)))
            path = "/".join(str(each) for each in error.instance_path)
            raise StepRefusalError(VALIDATION_FAILED, f"at /{path}: {error.message}")
        return None

    return step


def _avro_json(path: str) -> MessageStep:
    from fastavro.validation import ValidationError, validate

    schema = WatchedFile(path, load_avro_schema)

    def step(message: StepMessage) -> Disposition | None:
        try:
            validate(_json_of(message), schema.get(), strict=False)
        except ValidationError as error:
            raise StepRefusalError(VALIDATION_FAILED, "; ".join(str(each) for each in error.errors)) from None
        return None

    return step


def _avro_binary(path: str) -> MessageStep:
    from fastavro import schemaless_reader

    schema = WatchedFile(path, load_avro_schema)

    def step(message: StepMessage) -> Disposition | None:
        data = io.BytesIO(message.body)
        try:
            schemaless_reader(data, schema.get(), None)
        except Exception as error:  # noqa: BLE001 - the decoder may raise any exception
            raise StepRefusalError(
                VALIDATION_FAILED, f"no datum of the schema: {type(error).__name__}: {error}"
            ) from None
        if data.read(1):
            raise StepRefusalError(VALIDATION_FAILED, "bytes follow the datum")
        return None

    return step


def _json_of(message: StepMessage) -> Any:
    try:
        return message.json
    except ValueError as error:
        raise StepRefusalError(VALIDATION_FAILED, str(error)) from None
