"""Messages that are alike in all but some values, split and converted in one step.

What it is: which bytes of a frequent message (`frequent`) vary from one message to the next, and the format that puts them into the converted one. It is
learned by converting a message with other values in its place. What it is not: a conversion of its own: `frequent` decides on everything but these values.

Invariants:
    I1. A message that deviates in any byte outside its slots is not converted here.
    I2. A layout is learned only from two messages in a row that have it: where none repeats, little time is lost.
    I3. The layout's result for its first message is that of `frequent`; otherwise there is no layout.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, Generic, TypeVar

from isthmus.connectors.rabbitmq.mapping.frequent import NUMBERS_BYTES, SEQUENCE, TIME

__all__ = ["SMALL", "Known", "Slot", "message_slots", "picker", "property_slots", "split_format", "template_of"]

Slot = tuple[int, int]
"""Where the bytes of a value begin, and end."""
# Senders whose values differ in length need many.
_LAYOUTS = 64
# After so many messages without a layout only one in so many is examined.
_PATIENCE = 64
_U32_AT = struct.Struct(">I").unpack_from
SMALL = frozenset(fill * (size - 1) for fill in (b"\0", b"\xff") for size in (4, 8))
"""What integers begin with that AMQP 1.0 may encode in one byte."""
_L = TypeVar("_L")


class Known(Generic[_L]):
    """The layouts of one end."""

    def __init__(self) -> None:
        self._known: dict[bytes, _L | None] = {}
        self._last = b""
        self._missed = 0

    @property
    def is_worth_examining(self) -> bool:
        """Whether to examine a message that no layout has converted."""
        self._missed += 1
        return self._missed < _PATIENCE or self._missed % _PATIENCE == 0

    def find(self, sample: bytes, slots: Sequence[Slot], make: Callable[[], _L | None]) -> _L | None:
        """The layout of a message, if the one examined before it had it, too (I2); `make` makes a new one."""
        key = _filled(sample, slots, b"\0")
        if key != self._last:
            self._last = key
            return None
        self._missed = 0
        if key not in self._known:
            if len(self._known) >= _LAYOUTS:
                self._known.clear()
            self._known[key] = make()
        return self._known[key]


def template_of(
    sample: bytes, slots: Sequence[Slot], convert: Callable[[bytes], bytes | None]
) -> tuple[bytes, list[int]] | None:
    """The format of the converted message, and the numbers of the slots that it takes; None where a slot has no place of its own in it."""
    plain_sample = _filled(sample, slots, b"A")
    made, plain = convert(sample), convert(plain_sample)
    if made is None or plain is None or len(made) != len(plain):
        return None
    places: list[tuple[int, int, int]] = []
    for number, (start, stop) in enumerate(slots):
        other = convert(plain_sample[:start] + b"B" * (stop - start) + plain_sample[stop:])
        if other is None or len(other) != len(plain):
            return None
        changed = [at for at in range(len(plain)) if plain[at] != other[at]]
        if not changed:
            continue  # the converted message does not have it
        if changed != list(range(changed[0], changed[0] + stop - start)):
            return None
        places.append((changed[0], changed[-1] + 1, number))
    pieces, at = [], 0
    for begin, end, _ in sorted(places):
        pieces.append(escaped(plain[at:begin]))
        at = end
    pieces.append(escaped(plain[at:]))
    form = b"%b".join(pieces)
    order = [number for _, _, number in sorted(places)]
    values = tuple(sample[slots[number][0] : slots[number][1]] for number in order)
    return (form, order) if form % values == made else None


def escaped(raw: bytes) -> bytes:
    """Bytes as part of a format."""
    return raw.replace(b"%", b"%%")


def split_format(sample: bytes, slots: Sequence[Slot]) -> tuple[str, list[bytes]]:
    """The layout of `struct` that splits a message into constants and values alternately, and the constants; it ends after the last slot."""
    layout, constants, at = "", [], 0
    for start, stop in slots:
        layout += f"{start - at}s{stop - start}s"
        constants.append(sample[at:start])
        at = stop
    return layout, constants


def picker(indexes: Sequence[int]) -> Callable[[tuple[Any, ...]], Any]:
    """The values of a format, of the fields of a message."""
    if not indexes:
        return lambda fields: ()
    return itemgetter(*indexes)


def _filled(sample: bytes, slots: Sequence[Slot], fill: bytes) -> bytes:
    made = bytearray(sample)
    for start, stop in slots:
        made[start:stop] = fill * (stop - start)
    return bytes(made)


# ---- AMQP 0-9-1


def property_slots(raw: bytes) -> tuple[list[Slot], list[Slot]]:
    """The texts, and the integers of the longer encoding, in properties that `frequent.sections_of` accepts."""
    flags = raw[0] << 8 | raw[1]
    texts: list[Slot] = []
    numbers: list[Slot] = []
    at = 2
    for flag in (0x8000, 0x4000):
        at += 1 + raw[at] if flags & flag else 0
    if flags & 0x2000:
        stop = at + 4 + _U32_AT(raw, at)[0]
        at += 4
        while at < stop:
            value = at + 2 + raw[at]
            at = _header_slot(raw, value, texts, numbers)
    at += 2 if flags & 0x0800 else 1
    for flag in (0x0400, 0x0200, 0x0080, 0x0040, 0x0020):
        if flag == 0x0040:
            at += 8 if flags & flag else 0
        elif flags & flag:
            stop = at + 1 + raw[at]
            texts.append((at + 1, stop))
            at = stop
    return [each for each in texts if each[0] < each[1]], numbers


def _header_slot(raw: bytes, value: int, texts: list[Slot], numbers: list[Slot]) -> int:
    kind = raw[value - 1]
    if kind == 0x53:  # S
        end = value + 4 + int(_U32_AT(raw, value)[0])
        texts.append((value + 4, end))
        return end
    if kind == 0x74:  # t
        return value + 1
    end = value + (8 if kind == 0x6C else 4)  # l, I
    if raw[value : end - 1] not in SMALL:
        numbers.append((value, end))
    return end


# ---- AMQP 1.0


def message_slots(message: bytes) -> tuple[list[Slot], int] | None:
    """The values in a message that `frequent.to_frequent` accepts, the last of them the body's size; and where its body begins."""
    at = 5 + message[4] if message[:4] == b"\0Sp\xc0" else 0
    slots: list[Slot] = []
    if message[at : at + 3] == b"\0Sr":
        is_long = message[at + 3] == 0xD1
        numbers = at + 12 if is_long else at + 6
        time = numbers + len(SEQUENCE) + 8
        if message.startswith(SEQUENCE, numbers) and message.startswith(TIME, time):
            slots += [(time - 8, time), (numbers + NUMBERS_BYTES - 8, numbers + NUMBERS_BYTES)]
        at = at + 8 + int(_U32_AT(message, at + 4)[0]) if is_long else at + 5 + message[at + 4]
    if message[at : at + 3] == b"\0Ss":
        stop, at = at + 5 + message[at + 4], at + 6
        while at < stop:
            at = _value_slot(message, at, slots)
    if message[at : at + 3] == b"\0St":
        if message[at + 3] == 0xD1:
            stop, at = at + 8 + int(_U32_AT(message, at + 4)[0]), at + 12
        else:
            stop, at = at + 5 + message[at + 4], at + 6
        while at < stop:
            at = _value_slot(message, at + 2 + message[at + 1], slots)
    if message[at : at + 4] != b"\0Su\xb0":
        return None
    slots.append((at + 4, at + 8))
    return slots, at + 8


# Timestamps and symbols are constants: they are divided, and few.
_SIZES = {0x40: 1, 0x41: 1, 0x42: 1, 0x54: 2, 0x55: 2, 0x83: 9}
_NUMBERS = {0x71: 5, 0x81: 9}


def _value_slot(message: bytes, at: int, slots: list[Slot]) -> int:
    code = message[at]
    if code == 0xA1 or code == 0xA3:
        end = at + 2 + message[at + 1]
        if code == 0xA1 and at + 2 < end:
            slots.append((at + 2, end))
        return end
    if code in _NUMBERS:
        end = at + _NUMBERS[code]
        slots.append((at + 1, end))
        return end
    return at + _SIZES[code]
