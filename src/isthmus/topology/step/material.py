"""The check of files and functions that steps name.

What it is: for each step of a federation, whether its schema, reference data and key files exist and are valid, reported with the position
of the setting. It reads files and resolves no secret, but checks that its file exists. What it is not: the steps.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from isthmus.errors import Fault
from isthmus.extra import MissingExtraError, require
from isthmus.topology.file.document import Place
from isthmus.topology.file.reference import SecretReference
from isthmus.topology.model import Federation
from isthmus.topology.step import STEPS, StepDeclaration, anchored
from isthmus.topology.step.enrich import join_of

__all__ = ["check_material", "load_avro_schema", "load_json_schema", "load_schema"]


def check_material(federation: Federation, directory: Path) -> list[Fault]:
    """Every fault of the files that steps of a federation name.

    Args:
        federation: as read.
        directory: base of its relative paths.
    """
    found = []
    for task in federation.tasks.values():
        for step in task.steps:
            for name, message, hint in _faults(anchored(step, directory)):
                place: Place = step.at(name)
                found.append(Fault(message, hint, federation.file, place.line, place.column))
    return found


def _faults(step: StepDeclaration) -> Iterator[tuple[str, str, str]]:
    """Setting, message and hint of each fault of one step."""
    kind = STEPS[step.kind]
    missing = []
    for name in kind.paths:
        path = step.settings.get(name)
        if path and not Path(path).is_file():
            missing.append(name)
            yield name, f"there is no file {path}", "write a path from the folder of this file"
    for name in kind.references:
        value = step.settings.get(name) or {}
        for each in [value] if isinstance(value, str) else value.values():
            reference = SecretReference.parse(each)
            if reference.scheme == "file" and not Path(reference.location).is_file():
                kind_of_file = "key file" if name != "database" else "file"
                yield (
                    name,
                    f"there is no {kind_of_file} {reference.location}",
                    "write file:PATH, env:NAME or keyvault:VAULT/NAME",
                )
    if missing:
        return
    try:
        if step.settings.get("schema"):
            load_schema(step.settings["schema"])
    except (ValueError, MissingExtraError) as error:
        yield "schema", str(error), ""
    if step.kind == "enrich" and step.settings.get("database"):
        try:
            require("sql", "reference data of a database")
        except MissingExtraError as error:
            yield "database", str(error), ""
    elif step.kind == "enrich":
        yield from _reference_faults(step.settings)


def _reference_faults(settings: Any) -> Iterator[tuple[str, str, str]]:
    if settings["from"].endswith(".parquet"):
        return  # its columns are checked where Arrow is installed
    with open(settings["from"], newline="", encoding="utf-8-sig") as file:
        try:
            header = next(csv.reader(file), [])
        except (UnicodeDecodeError, csv.Error) as error:
            yield "from", f"{settings['from']} is no CSV file in UTF-8 ({error})", ""
            return
    known = ", ".join(header)
    for name, column in [("on", join_of(settings["on"])[1]), *(("columns", each) for each in settings["columns"])]:
        if column not in header:
            yield name, f"{Path(settings['from']).name} has no column {column!r}", f"write some of {known}"


def load_schema(path: str) -> Any:
    """The schema of a file, checked: a JSON document, or for `.avsc` an Avro schema as fastavro parses it.

    Raises:
        ValueError: the content is no schema, or the file cannot be read.
        MissingExtraError: the library for the check is not installed.
    """
    return load_avro_schema(path) if path.endswith(".avsc") else load_json_schema(path)


def load_json_schema(path: str) -> Any:
    """See `load_schema`; the validator of a JSON Schema."""
    require("steps", "the step validate")
    import jsonschema_rs

    document = _load_json(path)
    try:
        return jsonschema_rs.validator_for(document, retriever=_refuse_remote)
    except (jsonschema_rs.ValidationError, ValueError, TypeError) as error:
        reason = getattr(error, "message", None) or str(error)
        raise ValueError(f"{path} is no JSON Schema: {str(reason).splitlines()[0][:200]}") from None


def load_avro_schema(path: str) -> Any:
    """See `load_schema`; the parsed schema."""
    require("steps", "an Avro schema")
    import fastavro.schema

    document = _load_json(path)
    try:
        return fastavro.schema.parse_schema(document)
    except Exception as error:  # noqa: BLE001 - fastavro raises KeyError, TypeError and its own
        raise ValueError(f"{path} is no Avro schema: {type(error).__name__}: {error}") from None


def _load_json(path: str) -> Any:
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from None


def _refuse_remote(uri: str) -> Any:
    raise ValueError(f"the schema refers to {uri}; put the referenced parts into the file")
