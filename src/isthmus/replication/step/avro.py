"""The check for values that fastavro would write as other values.

What it is: a check of the values of a datum by the types of its schema. fastavro writes 1 for 1.5, true for the text "false", and an
`int` that no reader accepts for a number beyond 32 bits. What it is not: the check of a message (`validate`); the checks of fastavro itself,
also for a record with more fields than the schema, are left to it.
Specification: Apache Avro 1.11, "Primitive Types".

Invariants:
    I1. A value that passes is read as an equal one, except for the rounding of `float` and logical types.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

__all__ = ["check_datum"]

_BITS = {"int": 31, "long": 63}
_FLOAT_MOST = 3.4028234663852886e38
_COMPLEX = ("record", "error", "array", "map", "enum", "fixed")


def check_datum(value: Any, schema: Any, named: Mapping[str, Any] | None = None, path: str = "") -> None:
    """Checks a value.

    Args:
        value: a value of JSON.
        schema: as `fastavro.parse_schema` returns it.
        named: its named schemas.
        path: path of the value in the datum, for the error.

    Raises:
        ValueError: it would be written as another value.
    """
    if named is None:
        named = schema.get("__named_schemas", {}) if isinstance(schema, dict) else {}
    if isinstance(schema, list):  # fastavro checks the values itself, to find the branch
        return
    kind = schema["type"] if isinstance(schema, dict) else schema
    if not isinstance(kind, str):
        check_datum(value, kind, named, path)
    elif kind in _BITS:
        _check_integer(value, kind, path)
    elif kind in ("float", "double"):
        _check_float(value, kind, path)
    elif kind == "boolean" and not isinstance(value, bool):
        raise ValueError(f"{path or 'the datum'} is {value!r:.40}, and the schema says boolean")
    elif kind in ("record", "error") and isinstance(value, dict):
        for field in schema["fields"]:
            if field["name"] in value:
                check_datum(value[field["name"]], field["type"], named, f"{path}.{field['name']}".lstrip("."))
    elif kind == "array" and isinstance(value, list):
        for at, each in enumerate(value):
            check_datum(each, schema["items"], named, f"{path}[{at}]")
    elif kind == "map" and isinstance(value, dict):
        for name, each in value.items():
            check_datum(each, schema["values"], named, f"{path}.{name}".lstrip("."))
    elif kind in named and kind not in _COMPLEX:
        check_datum(value, named[kind], named, path)


def _check_integer(value: Any, kind: str, path: str) -> None:
    if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
        raise ValueError(f"{path or 'the datum'} is {value!r:.40}, and the schema says {kind}")
    limit = 1 << _BITS[kind]
    if isinstance(value, int | float) and not -limit <= value < limit:
        raise ValueError(f"{path or 'the datum'} is {value!r:.40}, which is beyond {kind}")


def _check_float(value: Any, kind: str, path: str) -> None:
    if isinstance(value, int) and (isinstance(value, bool) or int(float(value)) != value):
        raise ValueError(f"{path or 'the datum'} is {value!r:.40}, which is no {kind}")
    if kind == "float" and isinstance(value, int | float) and math.isfinite(value) and abs(value) > _FLOAT_MOST:
        raise ValueError(f"{path or 'the datum'} is {value!r:.40}, which is beyond {kind}")
