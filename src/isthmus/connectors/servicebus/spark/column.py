"""The columns that a write accepts: their names and types in Spark's plan.

What it is: the check of a schema before a task runs. What it is not: the rows (`row`).

Invariants:
    I1. A column that is not part of a message, and one whose values would be changed by sending, is refused by name,
        all in one error.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DoubleType,
    FloatType,
    IntegralType,
    MapType,
    NullType,
    StringType,
    StructType,
    TimestampType,
)

from isthmus.connectors.servicebus.spark.row import DECODED_TYPES
from isthmus.errors import ConfigError, Fault, InvalidArgumentError

__all__ = ["PLACE_COLUMNS", "misfit", "written_columns"]

# Columns besides the message: its origin, and its disposition there.
PLACE_COLUMNS = ("lock_token", "sequence_number", "disposition", "reason", "description")
_TEXT = (StringType,)
# By the type of a column in a read: the types accepted in a write, and the type to cast others to.
_KINDS: dict[str, tuple[tuple[type[DataType], ...], str]] = {
    "string": (_TEXT, "string"),
    "long": ((IntegralType,), "bigint"),
    "int": ((IntegralType,), "int"),
    "timestamp": ((TimestampType,), "timestamp"),
    "binary": ((BinaryType,), "binary"),
}
_BODY = ((BinaryType, StringType), "binary or string, e.g. by to_json")
_OTHERS = {
    "message": "binary",
    "lock_token": "binary",
    "sequence_number": "long",
    "disposition": "string",
    "reason": "string",
    "description": "string",
}
_FIELDS: dict[str, tuple[type[DataType], ...]] = {
    "boolean": (BooleanType,),
    "long": (IntegralType,),
    "double": (FloatType, DoubleType),
    "string": _TEXT,
    "datetime": (TimestampType,),
    "timespan_microseconds": (IntegralType,),
    "uuid": _TEXT,
    "binary": (BinaryType,),
    "type": _TEXT,
}
_PLAIN = (StringType, BooleanType, IntegralType, FloatType, DoubleType, BinaryType, TimestampType)


def written_columns(schema: StructType) -> list[str]:
    """The names of the columns to write.

    Raises:
        InvalidArgumentError: there is no column to make messages of.
        ConfigError: a column would be ignored, or its values would be changed.
    """
    names: list[str] = schema.fieldNames()
    if "message" not in names and "body" not in names:
        raise InvalidArgumentError(
            "servicebus writes rows with a column 'message' (encoded) or 'body' (and the decoded columns)"
        )
    encoded = "message" in names
    known = (
        ("message", *PLACE_COLUMNS) if encoded else ("body", *DECODED_TYPES, *PLACE_COLUMNS, "application_properties")
    )
    faults = [
        Fault(f"servicebus write: there are two columns '{name}'", "drop one of them")
        for name in dict.fromkeys(names)
        if names.count(name) > 1
    ]
    for field in schema.fields:
        if field.name not in known:
            faults.append(_unknown(field.name, known, encoded))
        elif hint := misfit(field.name, field.dataType):
            faults.append(Fault(f"servicebus write: column '{field.name}' is {field.dataType.simpleString()}", hint))
    if faults:
        raise ConfigError(faults)
    return names


def _unknown(name: str, known: Sequence[str], encoded: bool) -> Fault:
    if encoded:
        hint = "drop it; the column 'message' contains the whole message"
        return Fault(f"servicebus write: nothing is written from column '{name}'", hint)
    near = {one.replace("_", ""): one for one in known}
    found = get_close_matches(name.lower().replace("_", ""), near, 1)
    hint = f"write {near[found[0]]}" if found else "drop it, or put it into application_properties"
    return Fault(f"servicebus write: there is no column '{name}'", hint)


def misfit(name: str, given: DataType) -> str:
    """What to do with a column whose values would be changed by sending; empty where they would not.

    Args:
        name: the name of a written column.
        given: its type.
    """
    if isinstance(given, NullType):
        return ""
    if name == "application_properties":
        return _property_fault(given)
    types, cast = _BODY if name == "body" else _KINDS[_OTHERS.get(name) or DECODED_TYPES[name]]
    return "" if isinstance(given, types) else f"cast it to {cast}"


def _property_fault(given: DataType) -> str:
    """What to do with a type that cannot be application properties; empty where it can."""
    if not isinstance(given, MapType) or not isinstance(given.keyType, StringType):
        return "make a map<string, struct> as it is read, or a map<string, string>"
    value = given.valueType
    if isinstance(value, (NullType, *_PLAIN)):
        return ""
    if not isinstance(value, StructType):
        return f"cast the values to one of {', '.join(_FIELDS)}; no property is made of {value.simpleString()}"
    wrong = [
        field.name
        for field in value.fields
        if not isinstance(field.dataType, (NullType, *_FIELDS.get(field.name, ()))) or field.name not in _FIELDS
    ]
    return (
        f"nothing is written from the fields {', '.join(wrong)} as they are; known are {', '.join(_FIELDS)}"
        if wrong
        else ""
    )
