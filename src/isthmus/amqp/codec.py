"""The AMQP 1.0 type system: bytes to Python values and back (spec part 1).

What it is: `encode`, `decode`, and `value_end`, which steps over a value without decoding it. What it is not: frames
and performatives. A little over 400 lines: the tables for reading and for writing a type are side by side.

Invariants:
    I1. decode(encode(v)) == v with the same AMQP type, for every value of `types`.
    I2. Bytes that are no value raise CodecError, whatever they are: never IndexError, never a hang, never more
        memory than the input's own size times a constant (depth and counts are bounded).
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from typing import Any

from isthmus.amqp.types import (
    Array,
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    Float,
    Int,
    Long,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)
from isthmus.errors import ProtocolError

__all__ = ["WIDTH", "CodecError", "decode", "encode", "encode_array", "encode_list", "encode_map", "value_end"]

MAX_DEPTH = 64  # the SDKs' own limit; a deeper value is an attack, not a message
# Elements of an array that take no bytes (null, true, 0 …): no application needs more, and without a limit ten bytes could
# demand any amount of memory.
_EMPTY_ELEMENTS = 64
# Keys of a map with equal hashes, more than chance produces: anyone can construct any number of such UUIDs and described
# values, and a dict of them takes quadratic time.
_SAME_HASHES = 32


class CodecError(ProtocolError):
    """The bytes are not an AMQP value."""

    code = "amqp-decode"


_U16, _U32, _U64 = struct.Struct(">H"), struct.Struct(">I"), struct.Struct(">Q")
_I16, _I32, _I64 = struct.Struct(">h"), struct.Struct(">i"), struct.Struct(">q")
_F32, _F64 = struct.Struct(">f"), struct.Struct(">d")

# Total length of a value by its constructor: 0 = one length byte follows, 255 = four, 254 = described or invalid.
_BY_NIBBLE = {4: 1, 5: 2, 6: 3, 7: 5, 8: 9, 9: 17, 0xA: 0, 0xC: 0, 0xE: 0, 0xB: 255, 0xD: 255, 0xF: 255}
WIDTH = bytes(_BY_NIBBLE.get(code >> 4, 254) for code in range(256))


def value_end(buffer: bytes, offset: int, depth: int = 0) -> int:
    """Where the value that starts at `offset` ends, without decoding it.

    Raises:
        CodecError: the constructor is unknown or the value is cut off.
    """
    try:
        width = WIDTH[buffer[offset]]
        if 0 < width < 254:
            end = offset + width
        elif width == 0:
            end = offset + 2 + buffer[offset + 1]
        elif width == 255:
            end = offset + 5 + _U32.unpack_from(buffer, offset + 1)[0]
        elif buffer[offset] == 0 and depth < MAX_DEPTH:
            return value_end(buffer, value_end(buffer, offset + 1, depth + 1), depth + 1)
        else:
            raise CodecError(f"constructor 0x{buffer[offset]:02x} at byte {offset} is no AMQP type")
    except (IndexError, struct.error):
        raise CodecError(f"value at byte {offset} is cut off") from None
    if end > len(buffer):
        raise CodecError(f"value at byte {offset} is cut off")
    return end


def decode(buffer: bytes, offset: int = 0) -> tuple[Any, int]:
    """The value at `offset` and where it ends.

    Raises:
        CodecError: the bytes are no AMQP value.
    """
    try:
        return _decode(buffer, offset, 0)
    except (IndexError, struct.error, UnicodeDecodeError, ValueError, OverflowError) as error:
        raise CodecError(f"value at byte {offset} cannot be decoded: {error}") from None


def _cut(buffer: bytes, start: int, end: int) -> bytes:
    if end > len(buffer):
        raise CodecError(f"value at byte {start} is cut off")
    return buffer[start:end]


def _fixed(code: int, buffer: bytes, at: int) -> tuple[Any, int]:
    reader = _FIXED.get(code)
    if reader is None:
        raise CodecError(f"constructor 0x{code:02x} is no AMQP type")
    return reader(buffer, at)


def _decode(buffer: bytes, offset: int, depth: int) -> tuple[Any, int]:
    code = buffer[offset]
    at = offset + 1
    reader = _FIXED.get(code)
    if reader is not None:  # the common case: all small scalar types
        return reader(buffer, at)
    if code == 0:
        if depth >= MAX_DEPTH:
            raise CodecError("values are nested too deeply")
        descriptor, at = _decode(buffer, at, depth + 1)
        value, at = _decode(buffer, at, depth + 1)
        return Described(descriptor, value), at
    return _body(code, buffer, at, depth)


def _body(code: int, buffer: bytes, at: int, depth: int) -> tuple[Any, int]:
    """The value whose constructor was `code` and whose data starts at `at`."""
    nibble = code >> 4
    if nibble == 0xA or nibble == 0xB:
        if nibble == 0xA:
            start, end = at + 1, at + 1 + buffer[at]
        else:
            start, end = at + 4, at + 4 + _U32.unpack_from(buffer, at)[0]
        raw = _cut(buffer, start, end)
        low = code & 0xF
        if low == 1:
            return str(raw, "utf-8"), end
        if low == 3:
            return Symbol(raw, "ascii"), end
        if low == 0:
            return bytes(raw), end
        raise CodecError(f"constructor 0x{code:02x} is no AMQP type")
    if nibble == 0xC or nibble == 0xD:
        if nibble == 0xC:
            end, count, at = at + 1 + buffer[at], buffer[at + 1], at + 2
        else:
            end, count, at = at + 4 + _U32.unpack_from(buffer, at)[0], _U32.unpack_from(buffer, at + 4)[0], at + 8
        return _compound(code & 0xF, buffer, at, end, count, depth)
    if nibble == 0xE or nibble == 0xF:
        if nibble == 0xE:
            end, count, at = at + 1 + buffer[at], buffer[at + 1], at + 2
        else:
            end, count, at = at + 4 + _U32.unpack_from(buffer, at)[0], _U32.unpack_from(buffer, at + 4)[0], at + 8
        return _array(buffer, at, end, count, depth)
    return _fixed(code, buffer, at)


def _compound(kind: int, buffer: bytes, at: int, end: int, count: int, depth: int) -> tuple[Any, int]:
    if end > len(buffer) or count > end - at:
        raise CodecError("list or map is cut off")
    if depth >= MAX_DEPTH:
        raise CodecError("values are nested too deeply")
    values = []
    for _ in range(count):
        value, at = _decode(buffer, at, depth + 1)
        values.append(value)
    if at > end:
        raise CodecError("list or map runs over its size")
    if kind == 0:
        return values, end
    if kind != 1 or count % 2:
        raise CodecError("map with an odd number of values")
    keys = values[::2]
    try:
        if len(keys) > _SAME_HASHES and len(set(map(hash, keys))) + _SAME_HASHES < len(keys):
            raise CodecError("map with too many equal keys")
        return dict(zip(keys, values[1::2], strict=True)), end
    except TypeError:
        raise CodecError("map with a key that is no scalar") from None


def _array(buffer: bytes, at: int, end: int, count: int, depth: int) -> tuple[Any, int]:
    if end > len(buffer):
        raise CodecError("array is cut off")
    if depth >= MAX_DEPTH:
        raise CodecError("values are nested too deeply")
    descriptor = None
    code = buffer[at]
    at += 1
    if code == 0:
        descriptor, at = _decode(buffer, at, depth + 1)
        code = buffer[at]
        at += 1
    if count > end - at and WIDTH[code] != 1:
        raise CodecError("array is cut off")
    if count > _EMPTY_ELEMENTS and WIDTH[code] == 1:
        raise CodecError("array of too many empty values")
    values = Array(code)
    for _ in range(count):
        value, at = _body(code, buffer, at, depth + 1)
        values.append(value if descriptor is None else Described(descriptor, value))
    if at > end:
        raise CodecError("array runs over its size")
    return values, end


def _boolean(buffer: bytes, at: int) -> tuple[bool, int]:
    return buffer[at] != 0, at + 1


def _char(buffer: bytes, at: int) -> tuple[Char, int]:
    code = _U32.unpack_from(buffer, at)[0]
    if 0xD800 <= code < 0xE000:
        raise CodecError("half of a surrogate pair is no character")
    return Char(chr(code)), at + 4


def _raw(kind: type[bytes], size: int) -> Callable[[bytes, int], tuple[Any, int]]:
    return lambda buffer, at: (kind(_cut(buffer, at, at + size)), at + size)


_FIXED: dict[int, Callable[[bytes, int], tuple[Any, int]]] = {
    0x40: lambda buffer, at: (None, at),
    0x41: lambda buffer, at: (True, at),
    0x42: lambda buffer, at: (False, at),
    0x43: lambda buffer, at: (UInt(0), at),
    0x44: lambda buffer, at: (ULong(0), at),
    0x45: lambda buffer, at: ([], at),
    0x50: lambda buffer, at: (UByte(buffer[at]), at + 1),
    0x51: lambda buffer, at: (Byte((buffer[at] ^ 0x80) - 0x80), at + 1),
    0x52: lambda buffer, at: (UInt(buffer[at]), at + 1),
    0x53: lambda buffer, at: (ULong(buffer[at]), at + 1),
    0x54: lambda buffer, at: (Int((buffer[at] ^ 0x80) - 0x80), at + 1),
    0x55: lambda buffer, at: (Long((buffer[at] ^ 0x80) - 0x80), at + 1),
    0x56: _boolean,
    0x60: lambda buffer, at: (UShort(_U16.unpack_from(buffer, at)[0]), at + 2),
    0x61: lambda buffer, at: (Short(_I16.unpack_from(buffer, at)[0]), at + 2),
    0x70: lambda buffer, at: (UInt(_U32.unpack_from(buffer, at)[0]), at + 4),
    0x71: lambda buffer, at: (Int(_I32.unpack_from(buffer, at)[0]), at + 4),
    0x72: lambda buffer, at: (Float(_F32.unpack_from(buffer, at)[0]), at + 4),
    0x73: _char,
    0x74: _raw(Decimal32, 4),
    0x80: lambda buffer, at: (ULong(_U64.unpack_from(buffer, at)[0]), at + 8),
    0x81: lambda buffer, at: (Long(_I64.unpack_from(buffer, at)[0]), at + 8),
    0x82: lambda buffer, at: (_F64.unpack_from(buffer, at)[0], at + 8),
    0x83: lambda buffer, at: (Timestamp(_I64.unpack_from(buffer, at)[0]), at + 8),
    0x84: _raw(Decimal64, 8),
    0x94: _raw(Decimal128, 16),
    0x98: lambda buffer, at: (uuid.UUID(bytes=_cut(buffer, at, at + 16)), at + 16),
}


# ---- encoding


def encode(value: Any) -> bytes:
    """`value` in its shortest encoding.

    Raises:
        CodecError: the value has no AMQP type or is out of its type's range.
    """
    encoder = _ENCODERS.get(type(value))
    try:
        if encoder is not None:
            return encoder(value)
        for kind, inherited in _ENCODERS.items():  # a subclass, e.g. an enum
            if isinstance(value, kind):
                return inherited(value)
    except (struct.error, OverflowError, ValueError, TypeError, AttributeError) as error:
        raise CodecError(f"{type(value).__name__} {value!r} is out of range: {error}") from None
    raise CodecError(f"a {type(value).__name__} has no AMQP type")


def _variable(code: int, raw: bytes) -> bytes:
    size = len(raw)
    if size < 256:
        return bytes((0xA0 | code, size)) + raw
    return bytes((0xB0 | code,)) + _U32.pack(size) + raw


def encode_list(fields: list[bytes]) -> bytes:
    """A list from its encoded fields; never the empty form `45`, which older SDKs cannot take for a performative."""
    raw = b"".join(fields)
    if len(raw) < 255 and len(fields) < 256:
        return bytes((0xC0, len(raw) + 1, len(fields))) + raw
    return b"\xd0" + _U32.pack(len(raw) + 4) + _U32.pack(len(fields)) + raw


def encode_map(pairs: list[bytes]) -> bytes:
    """A map from its encoded keys and values, in turn."""
    raw = b"".join(pairs)
    if len(raw) < 255 and len(pairs) < 256:
        return bytes((0xC1, len(raw) + 1, len(pairs))) + raw
    return b"\xd1" + _U32.pack(len(raw) + 4) + _U32.pack(len(pairs)) + raw


_NARROW_COMPOUNDS = (0xC, 0xE)


def encode_array(array: Array) -> bytes:
    """An array; its elements in the encoding of its constructor byte."""
    if array and isinstance(array[0], Described):
        descriptor = b"\0" + encode(array[0].descriptor)
        values = [described.value for described in array]
    else:
        descriptor, values = b"", list(array)
    code = array.code
    if (
        code >> 4 in _NARROW_COMPOUNDS
    ):  # the sender may have used the narrow encoding, into which these elements may not fit
        code |= 0x10
    raw = descriptor + bytes((code,)) + b"".join(_element(code, value) for value in values)
    return b"\xf0" + _U32.pack(len(raw) + 4) + _U32.pack(len(array)) + raw


def _element(code: int, value: Any) -> bytes:
    packer = _ELEMENTS.get(code)
    if packer is not None:
        return packer(value)
    nibble, low = code >> 4, code & 0xF
    if nibble in (0xA, 0xB):
        raw: bytes = value if low == 0 else value.encode(*("ascii", "replace") if low == 3 else ("utf-8",))
        return (bytes((len(raw),)) if nibble == 0xA else _U32.pack(len(raw))) + raw
    if nibble == 0xD:
        items = value if low == 0 else [item for pair in value.items() for item in pair]
        raw = b"".join(encode(item) for item in items)
        return _U32.pack(len(raw) + 4) + _U32.pack(len(items)) + raw
    if code == 0xF0:
        return encode_array(value)[1:]
    raise CodecError(f"constructor 0x{code:02x} is no AMQP type for an array")


_ELEMENTS: dict[int, Callable[[Any], bytes]] = {
    0x40: lambda v: b"",
    0x41: lambda v: b"",
    0x42: lambda v: b"",
    0x43: lambda v: b"",
    0x44: lambda v: b"",
    0x45: lambda v: b"",
    0x50: lambda v: bytes((v,)),
    0x51: lambda v: bytes((v & 0xFF,)),
    0x52: lambda v: bytes((v,)),
    0x53: lambda v: bytes((v,)),
    0x54: lambda v: bytes((v & 0xFF,)),
    0x55: lambda v: bytes((v & 0xFF,)),
    0x56: lambda v: b"\1" if v else b"\0",
    0x60: _U16.pack,
    0x61: _I16.pack,
    0x70: _U32.pack,
    0x71: _I32.pack,
    0x72: _F32.pack,
    0x73: lambda v: _U32.pack(ord(v)),
    0x74: bytes,
    0x80: _U64.pack,
    0x81: _I64.pack,
    0x82: _F64.pack,
    0x83: _I64.pack,
    0x84: bytes,
    0x94: bytes,
    0x98: lambda v: v.bytes,
}


def _uint(value: int) -> bytes:
    if value == 0:
        return b"\x43"
    return bytes((0x52, value)) if 0 < value < 256 else b"\x70" + _U32.pack(value)


def _ulong(value: int) -> bytes:
    if value == 0:
        return b"\x44"
    return bytes((0x53, value)) if 0 < value < 256 else b"\x80" + _U64.pack(value)


def _small(code: int, wide: bytes, pack: Callable[[int], bytes]) -> Callable[[int], bytes]:
    return lambda value: bytes((code, value & 0xFF)) if -128 <= value < 128 else wide + pack(value)


def _byte(value: int) -> bytes:
    if not -128 <= value < 128:
        raise OverflowError("a byte goes from -128 to 127")
    return bytes((0x51, value & 0xFF))


def _ubyte(value: int) -> bytes:
    if not 0 <= value < 256:
        raise OverflowError("a ubyte goes from 0 to 255")
    return bytes((0x50, value))


_long = _small(0x55, b"\x81", _I64.pack)

_ENCODERS: dict[type, Callable[[Any], bytes]] = {
    type(None): lambda v: b"\x40",
    bool: lambda v: b"\x41" if v else b"\x42",
    Symbol: lambda v: _variable(3, v.encode("ascii", "replace")),
    Char: lambda v: b"\x73" + _U32.pack(ord(v)),
    UByte: _ubyte,
    UShort: lambda v: b"\x60" + _U16.pack(v),
    UInt: _uint,
    ULong: _ulong,
    Byte: _byte,
    Short: lambda v: b"\x61" + _I16.pack(v),
    Int: _small(0x54, b"\x71", _I32.pack),
    Long: _long,
    Timestamp: lambda v: b"\x83" + _I64.pack(v),
    Float: lambda v: b"\x72" + _F32.pack(v),
    Decimal32: lambda v: b"\x74" + v,
    Decimal64: lambda v: b"\x84" + v,
    Decimal128: lambda v: b"\x94" + v,
    Described: lambda v: b"\0" + encode(v.descriptor) + encode(v.value),
    Array: encode_array,
    uuid.UUID: lambda v: b"\x98" + v.bytes,
    bytes: lambda v: _variable(0, v),
    bytearray: lambda v: _variable(0, bytes(v)),
    memoryview: lambda v: _variable(0, bytes(v)),
    str: lambda v: _variable(1, v.encode("utf-8")),
    float: lambda v: b"\x82" + _F64.pack(v),
    int: _long,
    list: lambda v: encode_list([encode(item) for item in v]) if v else b"\x45",
    tuple: lambda v: encode_list([encode(item) for item in v]) if v else b"\x45",
    dict: lambda v: encode_map([encode(item) for pair in v.items() for item in pair]),
}
