"""What fastavro would write as another value than it is, found before it is written.

What it is: a look at the values of a datum by the types of its schema. fastavro makes 1 of 1.5, true of the text "false", and an `int`
that no reader takes of a number beyond 32 bits. What it is not: the check of a message (`validate`); what fastavro refuses itself,
also a record with more fields than the schema, is left to it.
Specification: Apache Avro 1.11, "Primitive Types".

Invariants:
    I1. A value that passes is read again as an equal one, but for what `float` and logical types round.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

__all__ = ["check_datum"]

_BITS = {"int": 31, "long": 63}
_FLOAT_MOST = 3.4028234663852886e38
_COMPLEX = ("record", "error", "array", "map", "enum", "fixed")


def check_datum(value: Any, schema: Any, named: Mapping[str, Any] | None = None, place: str = "") -> None:
    """Checks a value.

    Args:
        value: of JSON.
        schema: as `fastavro.parse_schema` gives it.
        named: its named schemas.
        place: of the value in the datum, for the error.

    Raises:
        ValueError: it would be written as another value.
    """
    if named is None:
        named = schema.get("__named_schemas", {}) if isinstance(schema, dict) else {}
    if isinstance(schema, list):  # fastavro looks at the values itself, to find the branch
        return
    kind = schema["type"] if isinstance(schema, dict) else schema
    if not isinstance(kind, str):
        check_datum(value, kind, named, place)
    elif kind in _BITS:
        _check_integer(value, kind, place)
    elif kind in ("float", "double"):
        _check_float(value, kind, place)
    elif kind == "boolean" and not isinstance(value, bool):
        raise ValueError(f"{place or 'the datum'} is {value!r:.40}, and the schema says boolean")
    elif kind in ("record", "error") and isinstance(value, dict):
        for field in schema["fields"]:
            if field["name"] in value:
                check_datum(value[field["name"]], field["type"], named, f"{place}.{field['name']}".lstrip("."))
    elif kind == "array" and isinstance(value, list):
        for at, each in enumerate(value):
            check_datum(each, schema["items"], named, f"{place}[{at}]")
    elif kind == "map" and isinstance(value, dict):
        for name, each in value.items():
            check_datum(each, schema["values"], named, f"{place}.{name}".lstrip("."))
    elif kind in named and kind not in _COMPLEX:
        check_datum(value, named[kind], named, place)


def _check_integer(value: Any, kind: str, place: str) -> None:
    if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
        raise ValueError(f"{place or 'the datum'} is {value!r:.40}, and the schema says {kind}")
    limit = 1 << _BITS[kind]
    if isinstance(value, int | float) and not -limit <= value < limit:
        raise ValueError(f"{place or 'the datum'} is {value!r:.40}, which is beyond {kind}")


def _check_float(value: Any, kind: str, place: str) -> None:
    if isinstance(value, int) and (isinstance(value, bool) or int(float(value)) != value):
        raise ValueError(f"{place or 'the datum'} is {value!r:.40}, which is no {kind}")
    if kind == "float" and isinstance(value, int | float) and math.isfinite(value) and abs(value) > _FLOAT_MOST:
        raise ValueError(f"{place or 'the datum'} is {value!r:.40}, which is beyond {kind}")
