"""Fields of a message, in the notation of steps.

`origin.name` is a field of the JSON body, `property:NAME` an application property, `system:NAME` a system property of the rules
language, `'text'` that text.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from isthmus.replication.step.message.message import StepMessage
from isthmus.rules import MISSING
from isthmus.rules.system import canonical_name

__all__ = ["ABSENT", "is_utf8", "put", "reader", "take_out"]

ABSENT = object()
"""A field that a message does not have."""


def reader(field: str) -> Callable[[StepMessage], Any]:
    """The function that reads a field; it returns ABSENT if the field is missing."""
    if len(field) > 1 and field[0] == field[-1] == "'":
        text = field[1:-1]
        return lambda message: text
    if field.startswith("property:"):
        name = field.partition(":")[2].lower()
        return lambda message: _json_value(message.user(name))
    if field.startswith("system:"):
        name = canonical_name(field.partition(":")[2]) or ""
        return lambda message: _json_value(message.sys(name))
    path = field.split(".")
    if len(path) == 1:
        return lambda message: message.json_object().get(field, ABSENT)
    return lambda message: _get(message.json_object(), path)


def put(body: dict[str, Any], field: str, value: Any) -> None:
    """Set a field of a JSON object; dots nest. A value with inner values is copied: a removal from it by a step does not change its source."""
    *above, last = field.split(".")
    for name in above:
        inner = body.get(name)
        if not isinstance(inner, dict):
            inner = body[name] = {}
        body = inner
    body[last] = copy.deepcopy(value) if isinstance(value, dict | list) else value


def take_out(body: dict[str, Any], field: str) -> None:
    """Remove a field from a JSON object, if it exists; a path also passes through each element of a list."""
    _take_out(body, field.split("."))


def _take_out(value: Any, path: list[str]) -> None:
    if isinstance(value, list):
        for each in value:
            _take_out(each, path)
    elif isinstance(value, dict) and len(path) > 1:
        _take_out(value.get(path[0]), path[1:])
    elif isinstance(value, dict):
        value.pop(path[0], None)


def is_utf8(text: str) -> bool:
    """Whether a text can be encoded, and so be in a column: JSON may contain halves of surrogate pairs, which UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _get(value: Any, path: list[str]) -> Any:
    for name in path:
        if not isinstance(value, dict) or name not in value:
            return ABSENT
        value = value[name]
    return value


def _json_value(value: Any) -> Any:
    if value is MISSING:
        return ABSENT
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, bytes):
        return value.hex()
    if value is None or isinstance(value, bool | str | int | float):
        return value
    return str(value)
