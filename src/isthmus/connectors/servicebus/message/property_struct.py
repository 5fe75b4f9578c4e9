"""Application properties as structs of one column, which keep their AMQP types.

What it is: a value to its struct and back; the struct names the type, so that a property that is read can be written again unchanged. What it is
not: a message, or a row (`isthmus.connectors.servicebus.spark.row`).

Invariants:
    I1. `describe` then `restore` gives an equal value of the same type.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import datetime
from typing import Any

from isthmus.amqp import codec, types

__all__ = ["describe", "is_moment", "milliseconds", "property_of", "restore"]

_KINDS = ("boolean", "long", "double", "string", "datetime", "timespan_microseconds", "uuid", "binary")
# The years 1 to 9999, the common range of Spark's and Python's times.
_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_799_999
# AMQP types of application properties by the name in the field `type`, and the field that holds their value.
_TYPES: dict[type, tuple[str, str]] = {
    bool: ("boolean", "boolean"),
    types.UByte: ("ubyte", "long"),
    types.UShort: ("ushort", "long"),
    types.UInt: ("uint", "long"),
    types.ULong: ("ulong", "long"),
    types.Byte: ("byte", "long"),
    types.Short: ("short", "long"),
    types.Int: ("int", "long"),
    types.Long: ("long", "long"),
    int: ("long", "long"),
    types.Float: ("float", "double"),
    float: ("double", "double"),
    str: ("string", "string"),
    types.Symbol: ("symbol", "string"),
    types.Char: ("char", "string"),
    types.Timestamp: ("timestamp", "datetime"),
    uuid.UUID: ("uuid", "uuid"),
    bytes: ("binary", "binary"),
}
_MAKERS: dict[str, Callable[[Any], Any]] = {
    "boolean": bool,
    "ubyte": types.UByte,
    "ushort": types.UShort,
    "uint": types.UInt,
    "ulong": types.ULong,
    "byte": types.Byte,
    "short": types.Short,
    "int": types.Int,
    "long": types.Long,
    "float": types.Float,
    "double": float,
    "string": str,
    "symbol": types.Symbol,
    "char": types.Char,
    "timestamp": lambda value: types.Timestamp(milliseconds(value)),
    "uuid": uuid.UUID,
    "binary": bytes,
}
# The type of a property whose row does not name it, by the field that is set.
_DEFAULTS = {
    "boolean": "boolean",
    "long": "long",
    "double": "double",
    "string": "string",
    "datetime": "timestamp",
    "uuid": "uuid",
    "binary": "binary",
}
_FIELD_OF = dict(_TYPES.values())
_TIMESPAN = types.Symbol("com.microsoft:timespan")
_TICKS_PER_MICROSECOND = 10


def describe(value: Any) -> dict[str, Any] | None:
    """An application property as the struct of its column; types without a field of their own are kept encoded."""
    if value is None:
        return None
    name, field = _TYPES.get(type(value), ("", ""))
    if field == "long" and not -(1 << 63) <= value < 1 << 63:
        field = ""
    if field == "datetime" and not is_moment(value):
        field = ""
    if field == "datetime":
        return {field: int(value) * 1000, "type": name}
    if field == "uuid":
        return {field: str(value), "type": name}
    if field:
        return {field: value, "type": name}
    encoded: dict[str, Any] = {"binary": codec.encode(value), "type": "amqp"}
    if isinstance(value, types.Described) and value.descriptor == _TIMESPAN and isinstance(value.value, int):
        encoded["timespan_microseconds"] = int(value.value) // _TICKS_PER_MICROSECOND
    return encoded


def restore(struct: dict[str, Any] | None) -> Any:
    """The application property that a struct describes; without a `type`, the type of the field that is set; null where none is.

    Raises:
        ValueError: the type is unknown, or the value does not have it.
    """
    if struct is None:
        return None
    name = struct.get("type")
    found = next((kind for kind in _KINDS if struct.get(kind) is not None), None)
    if name is not None and name != "amqp" and name not in _MAKERS:
        raise ValueError(f"application_properties: unknown type '{name}'; known are {', '.join(_MAKERS)}, amqp")
    if found is None:
        return None
    if name is None and found == "timespan_microseconds":
        return types.Described(_TIMESPAN, types.Long(struct[found] * _TICKS_PER_MICROSECOND))
    name = name or _DEFAULTS[found]
    field = _FIELD_OF.get(name, "binary")
    value = struct.get(field)
    if value is None:
        raise ValueError(f"application_properties: the type is '{name}' and the field {field} is null; {found} is set")
    return codec.decode(value)[0] if name == "amqp" else _MAKERS[name](value)


def property_of(cell: Any) -> Any:
    """The application property of a cell of the map: a struct, or a value of a map that a query has made.

    Raises:
        ValueError: as `restore`.
    """
    if isinstance(cell, datetime):
        return types.Timestamp(milliseconds(cell))
    return restore(cell) if isinstance(cell, dict) else cell


def is_moment(value: Any) -> bool:
    """Whether milliseconds since the epoch are in the range of Spark's and Python's times."""
    return isinstance(value, int) and _FIRST_MS <= value <= _LAST_MS


def milliseconds(value: Any) -> int:
    """Milliseconds since the epoch, of a number or of a datetime."""
    return int(value) if isinstance(value, int) else round(value.timestamp() * 1000)
