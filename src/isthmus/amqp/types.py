"""AMQP 1.0 types that Python has no exact counterpart for.

What it is: thin subclasses of int, str, float and bytes that remember which AMQP type a value had, so that a value
that passes through keeps its type (spec part 1, section 1.6).

| AMQP | Python | AMQP | Python |
| --- | --- | --- | --- |
| null, boolean | None, bool | string, symbol | str, Symbol |
| ubyte … ulong | UByte, UShort, UInt, ULong | binary | bytes |
| byte … long | Byte, Short, Int, Long (a bare int is a long) | timestamp | Timestamp, int of ms since the epoch |
| float, double | Float, float | uuid | uuid.UUID |
| decimal32/64/128 | Decimal32, Decimal64, Decimal128 (raw bytes) | char | Char |
| list, map | list, dict | array | Array |
| described | Described | | |
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "Array",
    "Byte",
    "Char",
    "Decimal32",
    "Decimal64",
    "Decimal128",
    "Described",
    "Float",
    "Int",
    "Long",
    "Short",
    "Symbol",
    "Timestamp",
    "UByte",
    "UInt",
    "ULong",
    "UShort",
]


class Symbol(str):
    """ASCII text from a constrained domain (spec 1.6.21)."""

    __slots__ = ()


class Char(str):
    """One Unicode character (spec 1.6.16)."""

    __slots__ = ()


class UByte(int):
    """0 to 255."""


class UShort(int):
    """0 to 65,535."""


class UInt(int):
    """0 to 2^32 − 1."""


class ULong(int):
    """0 to 2^64 − 1."""


class Byte(int):
    """−128 to 127."""


class Short(int):
    """−32,768 to 32,767."""


class Int(int):
    """−2^31 to 2^31 − 1."""


class Long(int):
    """−2^63 to 2^63 − 1; a bare Python int is encoded as one."""


class Timestamp(int):
    """Milliseconds since 1970-01-01T00:00:00Z."""


class Float(float):
    """IEEE 754 binary32; a bare Python float is a binary64."""


class Decimal32(bytes):
    """IEEE 754 decimal32, its 4 bytes passed through unchanged."""


class Decimal64(bytes):
    """IEEE 754 decimal64, its 8 bytes passed through unchanged."""


class Decimal128(bytes):
    """IEEE 754 decimal128, its 16 bytes passed through unchanged."""


class Described:
    """A value with a descriptor (spec 1.2)."""

    __slots__ = ("descriptor", "value")

    def __init__(self, descriptor: Any, value: Any) -> None:
        self.descriptor = descriptor
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Described) and (self.descriptor, self.value) == (other.descriptor, other.value)

    def __hash__(self) -> int:
        return hash((Described, str(self.descriptor)))

    def __repr__(self) -> str:
        return f"Described({self.descriptor!r}, {self.value!r})"


class Array(list[Any]):
    """Values of one AMQP type (spec 1.6.24).

    Args:
        code: the constructor byte of the elements, e.g. 0x98 for uuid, 0x81 for long; always the widest encoding.
        values: the elements.
    """

    def __init__(self, code: int, values: Any = ()) -> None:
        super().__init__(values)
        self.code = code

    def __repr__(self) -> str:
        return f"Array(0x{self.code:02x}, {list(self)!r})"
