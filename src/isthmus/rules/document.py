"""A message's properties as a JSON document, for tools and fixtures.

``{"sys": {"Label": …, "MessageId": …}, "user": {name: value}}``; both parts may be left out. JSON integers are longs and
decimals doubles; strings, booleans and null are themselves; other types are ``{"$type": type, "value": …}`` with the type
``datetime`` (ISO 8601), ``timespan_seconds`` (a number), ``uuid``, ``binary`` (base64), or ``double`` for the three
doubles that JSON has no number for ("NaN", "Infinity", "-Infinity").
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn
from uuid import UUID

from isthmus.errors import ConfigError, Fault
from isthmus.rules.evaluation.conversion import show_datetime
from isthmus.rules.system import SYSTEM_PROPERTIES, canonical_name, closest_name
from isthmus.rules.value import LONG_MAX, LONG_MIN, Kind, Value, kind_of

__all__ = ["parse_message", "parse_value", "show_message", "show_value"]

_NAMED_DOUBLES = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def parse_message(text: str, file: str = "") -> tuple[dict[str, Value], dict[str, Value]]:
    """Reads a document.

    Args:
        text: the JSON.
        file: its name, for errors.

    Returns:
        The system properties by canonical name, and the user properties.

    Raises:
        ConfigError: with every fault.
    """
    try:
        document = json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise ConfigError([Fault(f"this is no JSON: {error.msg}", "", file, error.lineno, error.colno)]) from None
    except (ValueError, RecursionError) as error:
        raise ConfigError([Fault(f"this is no JSON: {error}", "", file)]) from None
    faults: list[Fault] = []
    parts: dict[str, dict[str, Value]] = {"sys": {}, "user": {}}
    hint = 'write {"sys": {"Label": …}, "user": {name: value}}'
    if not isinstance(document, dict):
        raise ConfigError([Fault("a message is an object", hint, file)])
    for part, properties in document.items():
        if part not in parts or not isinstance(properties, dict):
            faults.append(Fault(f"'{part}' is no part of a message, or no object", hint, file))
            continue
        for name, raw in properties.items():
            try:
                value = parse_value(raw)
                if part == "sys":
                    name = _system_name(name, value)  # noqa: PLW2901  # the canonical spelling from here on
                parts[part][name] = value
            except ValueError as error:
                faults.append(Fault(f"{part}.{name}: {error}", "", file))
    if faults:
        raise ConfigError(faults)
    return parts["sys"], parts["user"]


def show_message(sys: Mapping[str, Value], user: Mapping[str, Value]) -> dict[str, Any]:
    """A message as an object that `json.dumps` takes and `parse_message` reads back."""
    return {
        "sys": {name: show_value(value) for name, value in sys.items()},
        "user": {name: show_value(value) for name, value in user.items()},
    }


def parse_value(raw: Any) -> Value:
    """A JSON value as a value of the language.

    Raises:
        ValueError: it is none; the text says why.
    """
    if raw is None or isinstance(raw, bool | float | str):
        return raw
    if isinstance(raw, int):
        if LONG_MIN <= raw <= LONG_MAX:
            return raw
        raise ValueError(f"{raw} does not fit a long of 64 bits")
    if isinstance(raw, dict) and raw.keys() == {"$type", "value"}:
        return _typed(raw["$type"], raw["value"])
    raise ValueError('a value is a string, a number, a boolean, null or {"$type": …, "value": …}')


def show_value(value: Value) -> Any:
    """A value as JSON; the inverse of `parse_value`."""
    match kind_of(value):
        case Kind.DOUBLE if not math.isfinite(value):  # type: ignore[arg-type]  # the kind is a double
            name = "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"  # type: ignore[operator] # noqa: PLR0124
            return {"$type": "double", "value": name}
        case Kind.DATETIME:
            assert isinstance(value, datetime)
            return {"$type": "datetime", "value": show_datetime(value)}
        case Kind.TIMESPAN:
            assert isinstance(value, timedelta)
            seconds = value.total_seconds()
            return {"$type": "timespan_seconds", "value": int(seconds) if seconds.is_integer() else seconds}
        case Kind.UUID:
            return {"$type": "uuid", "value": str(value)}
        case Kind.BINARY:
            assert isinstance(value, bytes)
            return {"$type": "binary", "value": base64.b64encode(value).decode("ascii")}
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f'{name} is no JSON number; write {{"$type": "double", "value": "{name}"}}')


def _system_name(name: str, value: Value) -> str:
    canonical = canonical_name(name)
    if canonical is None:
        closest = closest_name(name)
        raise ValueError("there is no such system property" + (f"; did you mean {closest}?" if closest else ""))
    kind = SYSTEM_PROPERTIES[canonical].kind
    if value is not None and kind_of(value) is not kind:
        raise ValueError(f"the value is to be a {kind.value}")
    return canonical


def _typed(kind: object, value: object) -> Value:
    try:
        if kind == "datetime" and isinstance(value, str):
            time = datetime.fromisoformat(value)
            return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
        if kind == "timespan_seconds" and isinstance(value, int | float) and not isinstance(value, bool):
            return timedelta(seconds=value)
        if kind == "uuid" and isinstance(value, str):
            return UUID(value)
        if kind == "binary" and isinstance(value, str):
            return base64.b64decode(value, validate=True)
        if kind == "double" and value in _NAMED_DOUBLES:
            return _NAMED_DOUBLES[str(value)]
    except (ValueError, OverflowError, binascii.Error) as error:
        raise ValueError(f"{value!r} is no {kind}: {error}") from None
    raise ValueError(f"$type is datetime, timespan_seconds, uuid, binary or double; {kind!r} of {value!r} is none")
