"""AMQP values as the values of Kafka headers.

What it is: the text or bytes of a header for a value, and the name of the value's type, which is noted beside the header
where the bytes alone do not determine it. What it is not: the note itself (`mapping`). Types: OASIS AMQP 1.0, 1.6.

Text is UTF-8. A string, null, and binary that is not UTF-8 text need no note.

Invariants:
    I1. `read(*write(value)) == value`, of the same type.
    I2. Bytes that do not match their noted type are read as if there were no note: another program may have changed them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any
from uuid import UUID

from isthmus.amqp import codec, types
from isthmus.amqp.codec import CodecError

__all__ = ["read", "write"]

_NUMBERS: dict[type, str] = {
    int: "long",
    types.Long: "long",
    types.Int: "int",
    types.Short: "short",
    types.Byte: "byte",
    types.ULong: "ulong",
    types.UInt: "uint",
    types.UShort: "ushort",
    types.UByte: "ubyte",
    types.Timestamp: "timestamp",
    types.Float: "float",
    float: "double",
}
_OTHERS: dict[type, str] = {UUID: "uuid", types.Symbol: "symbol", types.Char: "char"}
_AMQP = "amqp"


def _boolean(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError("neither true nor false")
    return text == "true"


_READERS: dict[str, Callable[[str], Any]] = {
    **{name: kind for kind, name in _NUMBERS.items() if kind is not int},
    "long": int,
    **{name: kind for kind, name in _OTHERS.items()},
    "boolean": _boolean,
}


def write(value: Any) -> tuple[bytes | None, str]:
    """A value as bytes, None for null, and the name of its type where that must be noted, else empty."""
    kind = type(value)
    if kind is str:
        return value.encode(), ""
    if value is None:
        return None, ""
    if kind is bytes:
        return value, "binary" if _is_text(value) else ""
    if kind is bool:
        return (b"true" if value else b"false"), "boolean"
    if kind in _NUMBERS:
        return (repr(float(value)) if isinstance(value, float) else str(int(value))).encode(), _NUMBERS[kind]
    if kind in _OTHERS:
        return str(value).encode(), _OTHERS[kind]
    return codec.encode(value), _AMQP


def read(raw: bytes | None, name: str = "") -> Any:
    """The value of bytes whose type is noted as `name`; empty: there is no note."""
    if raw is None:
        return None
    if name == "binary":
        return raw
    try:
        if name == _AMQP:
            value, end = codec.decode(raw)
            if end == len(raw):
                return value
        elif name in _READERS:
            value = _READERS[name](raw.decode())
            codec.encode(value)  # checks the limits of the type
            return value
    except (ValueError, CodecError, ArithmeticError, IndexError, struct.error):
        pass  # the value exceeds the limits of the type
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def _is_text(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True
