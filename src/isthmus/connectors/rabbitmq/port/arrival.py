"""The messages in deliveries with a known layout.

What it is: the frames of a delivery, read and mapped in one step where it is like an earlier one (`layout`). What it is not: the mapping: the first
deliveries of a layout, and all others, are read by `connection` and mapped by `mapping`. Redelivered messages are not read here.

Invariants:
    I1. A message is the one that `mapping.to_message` makes.
    I2. Only whole deliveries are read.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

from isthmus.connectors.rabbitmq.mapping.fingerprint import Traits, traits_of
from isthmus.connectors.rabbitmq.mapping.frequent import SEQUENCE, TIME, sections_of
from isthmus.connectors.rabbitmq.mapping.layout import (
    SMALL,
    Known,
    Slot,
    escaped,
    picker,
    property_slots,
    split_format,
    template_of,
)
from isthmus.connectors.rabbitmq.mapping.mapping import NUMBERS, annotation_parts
from isthmus.connectors.rabbitmq.protocol import wire
from isthmus.connectors.rabbitmq.protocol.connection import Content
from isthmus.connectors.rabbitmq.protocol.property import Record
from isthmus.connectors.rabbitmq.protocol.wire import M

__all__ = ["Arrivals", "delivery_of", "has_message_id"]

_BODY_HEAD = struct.Struct(">BH").pack
_SIZE, _TAG = struct.Struct(">I").unpack, struct.Struct(">Q").unpack
_TAG_AND_FLAG = struct.Struct(">Q?").unpack_from
_FRAME_HEAD_BYTES, _FRAME_END = 7, 0xCE
_MESSAGE_ID_FLAG = 0x80
_METHOD_BYTES, _CONTENT_BYTES = 4, 12
# Of the fields: tag, then the lower half of the body's size.
_TAG_FIELD, _SIZE_FIELD = 1, 3


class _Layout(NamedTuple):
    """One layout; even fields are constants.

    Attributes:
        unpack: splits a delivery up to its body.
        constants: the constants.
        size: where the body begins.
        texts: the fields that have to be ASCII.
        numbers: the indexes of the fields that must not be small.
        properties: where the properties begin and end.
        is_named: whether the messages have a message-id.
        front: the message up to position and time.
        format: the message after these, up to the body.
        pick: the values for the format.
        record: exchange and routing key of all.
    """

    unpack: Callable[[bytes, int], tuple[Any, ...]]
    constants: tuple[bytes, ...]
    size: int
    texts: Callable[[tuple[Any, ...]], Iterable[bytes]]
    numbers: tuple[int, ...]
    properties: Slot
    is_named: bool
    front: bytes
    format: bytes
    pick: Callable[[tuple[Any, ...]], Any]
    record: Record


class Arrivals:
    """The layouts of one source's deliveries.

    Args:
        channel: the channel.
        tag_at: where the delivery tag begins in the method's arguments.

    Attributes:
        is_named: whether the messages that were read last have a message-id.
    """

    def __init__(self, channel: int, tag_at: int) -> None:
        self._channel, self._tag_at = channel, tag_at
        self._layout: _Layout | None = None
        self._known: Known[_Layout] = Known()
        self.is_named = False

    def read(self, data: bytes, at: int, position: int) -> tuple[int, list[tuple[int, Traits, bytes]]]:
        """The deliveries that begin at `at` and have the layout of the last one: where they end, and tag, traits and message of each.

        Args:
            data: received bytes.
            at: where a frame begins.
            position: the position before that of the first.
        """
        layout, end = self._layout, len(data)
        found: list[tuple[int, Traits, bytes]] = []
        if layout is None or end - at <= layout.size:
            return at, found
        unpack, constants, size = layout.unpack, layout.constants, layout.size
        texts, numbers, pick = layout.texts, layout.numbers, layout.pick
        first, last = layout.properties
        _, _, exchange, routing_key = layout.record
        arrived_ms = int(time.time() * 1000)
        self.is_named = layout.is_named
        while (body := at + size) < end:
            fields = unpack(data, at)
            stop = body + _SIZE(fields[-1])[0]
            if fields[0::2] != constants or fields[_SIZE_FIELD] != fields[-1]:
                self._layout = None
                break
            if stop >= end:
                break
            if data[stop] != _FRAME_END or not b"".join(texts(fields)).isascii():
                break
            if numbers and any(fields[index][:-1] in SMALL for index in numbers):
                break
            position += 1
            content = data[body:stop]
            traits = traits_of(Record(content, data[at + first : at + last], exchange, routing_key))
            message = b"".join(
                (layout.front, NUMBERS(SEQUENCE, position, TIME, arrived_ms), layout.format % pick(fields), content)
            )
            found.append((_TAG(fields[_TAG_FIELD])[0], traits, message))
            at = stop + 1
        return at, found

    def learn(self, arguments: bytes, record: Record) -> None:
        """Learns the layout of a delivery that is not redelivered."""
        if not record.body or not self._known.is_worth_examining:
            return
        properties = record.properties
        try:
            header = sections_of(properties)
            texts, numbers = property_slots(properties) if header is not None else ([], [])
        except (IndexError, struct.error):
            return
        if header is None:
            return
        channel = self._channel
        method = wire.method(channel, M.BASIC_DELIVER, arguments)
        content = wire.content_frames(channel, properties, b"", 0)[0]
        begin = len(method) + _FRAME_HEAD_BYTES
        tag = _FRAME_HEAD_BYTES + _METHOD_BYTES + self._tag_at
        front = method + content + _BODY_HEAD(wire.BODY, channel)
        shift = begin + _CONTENT_BYTES
        inner = sorted((shift + start, shift + stop) for start, stop in texts + numbers)
        size = len(front)
        slots: list[Slot] = [(tag, tag + 8), (shift - 4, shift), *inner, (size, size + 4)]

        def made() -> _Layout | None:
            return _made(front + bytes(4), slots, sorted(texts + numbers), texts, record, shift, header[0])

        self._layout = self._known.find(front + bytes(4), slots, made)


def _made(
    front: bytes, slots: list[Slot], inner: list[Slot], texts: list[Slot], record: Record, shift: int, header: bytes
) -> _Layout | None:
    def others_of(properties: bytes) -> bytes | None:
        found = sections_of(properties)
        return None if found is None or found[0] != header else found[1]

    template = template_of(record.properties, inner, others_of)
    if template is None:
        return None
    form, order = template
    text, constants = split_format(front, slots)
    fields = {slot: 2 * number + 5 for number, slot in enumerate(inner)}  # after tag and size
    ascii_fields = [fields[each] for each in texts]
    head, tail = annotation_parts(record.exchange, record.routing_key, b"", 0)
    return _Layout(
        unpack=struct.Struct(">" + text).unpack_from,
        constants=tuple(constants),
        size=len(front),
        texts=picker(ascii_fields) if len(ascii_fields) != 1 else partial(_slice, ascii_fields[0]),
        numbers=tuple(fields[each] for each in inner if each not in texts),
        properties=(shift, shift + len(record.properties)),
        is_named=has_message_id(record),
        front=header + head,
        format=b"%b%b\0Su\xb0%%b" % (escaped(tail), form),
        pick=picker([*(fields[inner[number]] for number in order), 2 * len(slots) - 1]),
        record=Record(b"", b"", record.exchange, record.routing_key),
    )


def _slice(index: int, fields: tuple[Any, ...]) -> tuple[Any, ...]:
    return fields[index : index + 1]


def delivery_of(content: Content, tag_at: int) -> tuple[int, bool, Record]:
    """The delivery tag of a message, whether it is redelivered, and its record; `tag_at`: where the tag begins in the method's arguments."""
    arguments, properties, body = content
    tag, is_again = _TAG_AND_FLAG(arguments, tag_at)
    exchange, at = wire.short_at(arguments, tag_at + 9)
    routing_key, _ = wire.short_at(arguments, at)
    return tag, is_again, Record(body, properties, exchange, routing_key)


def has_message_id(record: Record) -> bool:
    """Whether a message has a message-id."""
    return bool(record.properties[1] & _MESSAGE_ID_FLAG)
