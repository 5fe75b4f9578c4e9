"""JSON whose numbers lose no digit when they are read and written again.

What it is: reading and writing as `json` does it, with a `JsonNumber` for a number that a float cannot represent as written, e.g.
1e400 or 0.1000000000000000055. Arithmetic uses it as a float. What it is not: a check of other encodings.
Specification: RFC 8259, 6 (numbers have no limits).

Invariants:
    I1. A number that is read, and not changed, is written with the same value; one that a float would round, with the same digits.
    I2. A number that a float represents exactly is a float.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any, Self

__all__ = ["JsonNumber", "exceeds_float", "read_exactly", "read_json", "write_json"]

# A float keeps every decimal of up to 15 digits (IEEE 754, binary64).
_EXACT_CHARACTERS = 15
# Of numbers; text within a string may match too.
_MAY_EXCEED = re.compile(f"[0-9.]{{{_EXACT_CHARACTERS},}}|[0-9][eE]").search
_decode = json.JSONDecoder().decode
# `json.dumps` makes an encoder for each call that asks for other separators.
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_NAME_END = -len("null}")


class JsonNumber(float):
    """A number that is written as `text`, which has digits that the float has not."""

    __slots__ = ("text",)
    text: str

    def __new__(cls, text: str) -> Self:
        """The number that a text denotes."""
        made = super().__new__(cls, text)
        made.text = text
        return made

    def __repr__(self) -> str:
        return self.text

    __str__ = __repr__

    def __copy__(self) -> JsonNumber:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> JsonNumber:
        return self

    def __reduce__(self) -> tuple[type[JsonNumber], tuple[str]]:
        return JsonNumber, (self.text,)

    @property
    def is_beyond_float(self) -> bool:
        """Whether the float is infinite, or zero, and the number is not."""
        return not math.isfinite(self) or (
            self == 0.0 and re.search("[1-9]", re.split("[eE]", self.text)[0]) is not None
        )


def read_json(text: bytes) -> Any:
    """The value of a JSON text.

    Raises:
        ValueError: it is none.
        RecursionError: it is nested too deep.
    """
    return read_exactly(text)[0]


def read_exactly(text: bytes) -> tuple[Any, bool]:
    """As `read_json`, and whether there is no `JsonNumber` in the value."""
    found = text.decode(json.detect_encoding(text), "surrogatepass")
    if _MAY_EXCEED(found) is None:
        return _decode(found), True
    reader = _Reader()
    return reader.decode(found), reader.is_plain


def write_json(value: Any, *, is_plain: bool = False, encode: Callable[[Any], str] = _encode) -> str:
    """A value as JSON.

    Args:
        value: what to write.
        is_plain: whether there is no `JsonNumber` in it.
        encode: writes a value without a `JsonNumber`; without spaces.

    Raises:
        TypeError: JSON has no such value.
        ValueError: it contains itself.
        RecursionError: it is nested too deep.
    """
    if is_plain:
        return encode(value)
    try:
        return _written(value, encode)
    except RecursionError:
        if any(isinstance(each, JsonNumber) for each in _values(value)):
            raise
        return encode(value)  # it is nested deeper


def exceeds_float(value: Any) -> bool:
    """Whether any number of a value is beyond what a float holds."""
    return any(isinstance(each, JsonNumber) and each.is_beyond_float for each in _values(value))


def _values(value: Any) -> Iterator[Any]:
    """The values within a value that contain no others."""
    left, seen = [value], set()
    while left:
        each = left.pop()
        if not isinstance(each, dict | list | tuple):
            yield each
        elif id(each) not in seen:
            seen.add(id(each))
            left += each.values() if isinstance(each, dict) else each


class _Reader:
    """The reader of one JSON text."""

    def __init__(self) -> None:
        self.is_plain = True
        self.decode = json.JSONDecoder(parse_float=self._number).decode

    def _number(self, text: str) -> float:
        if len(text) <= _EXACT_CHARACTERS and "e" not in text and "E" not in text:
            return float(text)
        number = float(text)
        shown = repr(number)
        if shown == text:
            return number
        try:
            is_same = math.isfinite(number) and Decimal(shown) == Decimal(text)
        except ArithmeticError:  # its exponent is beyond that of any decimal
            is_same = False
        if is_same:
            return number
        self.is_plain = False
        return JsonNumber(text)


def _written(value: Any, encode: Callable[[Any], str]) -> str:
    if isinstance(value, JsonNumber):
        return value.text
    if isinstance(value, dict):
        pairs = [encode({name: None})[1:_NAME_END] + _written(each, encode) for name, each in value.items()]
        return f"{{{','.join(pairs)}}}"
    if isinstance(value, list | tuple):
        return f"[{','.join([_written(each, encode) for each in value])}]"
    return encode(value)
