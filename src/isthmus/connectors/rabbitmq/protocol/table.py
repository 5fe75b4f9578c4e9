"""Field tables of AMQP 0-9-1.

What it is: tables as lists of fields, and fields as AMQP 1.0 values where an equal one exists. What it is not: a mapping of messages
(`mapping`). Specification: AMQP 0-9-1, 4.2.5.5, with the types as RabbitMQ has them ("AMQP 0-9-1 Errata", section 3).

A field's bytes are kept as they were received: `value_of` reads them.

Invariants:
    I1. `encode(decode(raw)) == raw`.
    I2. `value_of(*field_of(value)) == value`, of the same type, wherever `field_of` notes no type.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Any
from uuid import UUID

from isthmus.amqp import codec, types

__all__ = ["Field", "TableError", "decode", "encode", "field_of", "is_exact", "noted_value", "typed_field", "value_of"]

Field = tuple[str, bytes, bytes]
"""Name, the type's one byte, the value's bytes."""

_SIZES = {
    b"t": 1,
    b"b": 1,
    b"B": 1,
    b"s": 2,
    b"u": 2,
    b"I": 4,
    b"i": 4,
    b"l": 8,
    b"L": 8,
    b"f": 4,
    b"d": 8,
    b"D": 5,
    b"T": 8,
    b"V": 0,
}
_SIZES |= {b"U": 2}
_SIZED = (b"S", b"x", b"A", b"F")
_U32 = struct.Struct(">I")
_MILLIS = 1000
_LARGEST_SECONDS = (1 << 63) // _MILLIS - 1


class TableError(ValueError):
    """The bytes are not a table."""


def decode(raw: bytes, at: int = 0) -> tuple[list[Field], int]:
    """The fields of the table that begins at `at`, and its end.

    Raises:
        TableError: it is malformed.
    """
    try:
        stop = at + 4 + _U32.unpack_from(raw, at)[0]
        at += 4
        fields = []
        while at < stop:
            begin = at + 1 + raw[at]
            name = raw[at + 1 : begin].decode("utf-8", "surrogateescape")
            end = _value_end(raw, begin)
            fields.append((name, raw[begin : begin + 1], raw[begin + 1 : end]))
            at = end
    except (IndexError, struct.error):
        raise TableError("a field table is cut off") from None
    if at != stop or stop > len(raw):
        raise TableError("a field table is cut off")
    return fields, at


def _value_end(raw: bytes, at: int) -> int:
    kind = raw[at : at + 1]
    size = _SIZES.get(kind)
    if size is not None:
        return at + 1 + size
    if kind in _SIZED:
        return at + 5 + int(_U32.unpack_from(raw, at + 1)[0])
    raise TableError(f"a field table has the unknown type {kind!r}")


def encode(fields: Iterable[Field]) -> bytes:
    """Encodes a table."""
    parts = []
    for name, kind, raw in fields:
        key = name.encode("utf-8", "surrogateescape")
        if len(key) > 255:
            raise TableError(f"the name '{name[:40]}…' has {len(key)} bytes; a header's name has 255 at most")
        parts.append(b"%c%b%b%b" % (len(key), key, kind, raw))
    joined = b"".join(parts)
    return _U32.pack(len(joined)) + joined


# ---- fields to values

_FIXED: dict[bytes, tuple[struct.Struct, Callable[[Any], Any]]] = {
    b"t": (struct.Struct(">?"), bool),
    b"b": (struct.Struct(">b"), types.Byte),
    b"B": (struct.Struct(">B"), types.UByte),
    b"s": (struct.Struct(">h"), types.Short),
    b"U": (struct.Struct(">h"), types.Short),
    b"u": (struct.Struct(">H"), types.UShort),
    b"I": (struct.Struct(">i"), types.Int),
    b"i": (struct.Struct(">I"), types.UInt),
    b"l": (struct.Struct(">q"), int),
    b"L": (struct.Struct(">q"), int),
    b"f": (struct.Struct(">f"), types.Float),
    b"d": (struct.Struct(">d"), float),
}


def value_of(kind: bytes, raw: bytes) -> Any:
    """The AMQP 1.0 value of a field; for a type without equal, the closest text."""
    fixed = _FIXED.get(kind)
    if fixed is not None:
        return fixed[1](fixed[0].unpack(raw)[0])
    if kind == b"S":
        try:
            return raw[4:].decode()
        except UnicodeDecodeError:
            return raw[4:]
    if kind == b"x":
        return raw[4:]
    if kind == b"T":
        return types.Timestamp(min(int.from_bytes(raw, "big"), _LARGEST_SECONDS) * _MILLIS)
    if kind == b"V":
        return None
    return _shown(kind, raw)


def is_exact(kind: bytes, raw: bytes) -> bool:
    """Whether `field_of` makes the same field of the value."""
    if kind == b"S":
        try:
            raw[4:].decode()
        except UnicodeDecodeError:
            return False
        return True
    if kind == b"T":
        return int.from_bytes(raw, "big") < _LARGEST_SECONDS
    if kind == b"t":
        return raw in (b"\0", b"\1")
    if kind in (b"f", b"d"):
        return field_of(value_of(kind, raw)) == (kind, raw)
    return kind in b"bBsuIilxV"


def _shown(kind: bytes, raw: bytes) -> str:
    """A decimal, an array or a table, as text."""
    if kind == b"D":
        scale, number = raw[0], int.from_bytes(raw[1:], "big", signed=True)
        return f"{number}e-{scale}"
    if kind == b"F":
        inner = ",".join(f'"{name}":{_quoted(each, part)}' for name, each, part in decode(raw)[0])
        return "{" + inner.encode("utf-8", "replace").decode() + "}"
    parts, at = [], 4
    while at < len(raw):
        end = _value_end(raw, at)
        parts.append(_quoted(raw[at : at + 1], raw[at + 1 : end]))
        at = end
    return "[" + ",".join(parts) + "]"


def _quoted(kind: bytes, raw: bytes) -> str:
    value = value_of(kind, raw)
    if isinstance(value, str) and kind in b"AFD":
        return value
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, bytes):
        return '"' + value.hex() + '"'
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return repr(float(value)) if isinstance(value, float) else str(int(value))


# ---- values to fields

_PACKED: dict[type, tuple[bytes, struct.Struct]] = {
    bool: (b"t", struct.Struct(">?")),
    types.Byte: (b"b", struct.Struct(">b")),
    types.UByte: (b"B", struct.Struct(">B")),
    types.Short: (b"s", struct.Struct(">h")),
    types.UShort: (b"u", struct.Struct(">H")),
    types.Int: (b"I", struct.Struct(">i")),
    types.UInt: (b"i", struct.Struct(">I")),
    types.Long: (b"l", struct.Struct(">q")),
    int: (b"l", struct.Struct(">q")),
    types.Float: (b"f", struct.Struct(">f")),
    float: (b"d", struct.Struct(">d")),
}
_TEXTS: dict[type, str] = {UUID: "uuid", types.Symbol: "symbol", types.Char: "char"}
_NOTED: dict[str, Callable[[Any], Any]] = {
    "uuid": UUID,
    "symbol": types.Symbol,
    "char": types.Char,
    "ulong": lambda value: types.ULong(int(value)),
    "timestamp": lambda value: types.Timestamp(int(value)),
}


def field_of(value: Any) -> tuple[bytes, bytes]:
    """Type and bytes of a value."""
    return typed_field(value)[:2]


def typed_field(value: Any) -> tuple[bytes, bytes, str]:
    """Type and bytes of a value, and the name of its AMQP 1.0 type where the field does not determine it."""
    kind = type(value)
    if kind is str:
        raw = value.encode()
        return b"S", _U32.pack(len(raw)) + raw, ""
    packed = _PACKED.get(kind)
    if packed is not None:
        return packed[0], packed[1].pack(value), ""
    if kind is bytes:
        return b"x", _U32.pack(len(value)) + value, ""
    if value is None:
        return b"V", b"", ""
    if kind is types.Timestamp:
        if value >= 0 and value % _MILLIS == 0 and value // _MILLIS < _LARGEST_SECONDS:
            return b"T", struct.pack(">Q", value // _MILLIS), ""
        return b"l", struct.pack(">q", value), "timestamp"
    if kind is types.ULong:
        if value < 1 << 63:
            return b"l", struct.pack(">q", value), "ulong"
        return *field_of(str(int(value))), "ulong"
    if kind in _TEXTS:
        return *field_of(str(value)), _TEXTS[kind]
    return *field_of(codec.encode(value)), "amqp"


def noted_value(kind: bytes, raw: bytes, name: str) -> Any:
    """The value of a field whose type was noted as `name`; without regard to the note where it does not match."""
    value = value_of(kind, raw)
    try:
        if name == "amqp" and isinstance(value, bytes):
            found, end = codec.decode(value)
            return found if end == len(value) else value
        if name in _NOTED:
            made = _NOTED[name](value)
            codec.encode(made)  # checks the limits of its type
            return made
    except Exception:  # noqa: BLE001 - another program may have changed it
        return value
    return value
