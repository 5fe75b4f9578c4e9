"""The frames that publish messages with a known layout.

What it is: method, header and beginning of the body, made in one step of messages that are alike (`layout`). What it is not: the mapping: the first
messages of a layout, and all others, are mapped by `outward`.

Invariants:
    I1. The frames are those of `wire.publish_method` and `wire.content_frames` for the record that `outward.to_record` makes.
"""

from __future__ import annotations

import struct

from isthmus.connectors.rabbitmq.mapping.frequent import to_frequent
from isthmus.connectors.rabbitmq.mapping.layout import (
    Known,
    escaped,
    message_slots,
    picker,
    split_format,
    template_of,
)
from isthmus.connectors.rabbitmq.protocol import wire
from isthmus.connectors.rabbitmq.protocol.property import Record

__all__ = ["Publications"]

_FRAME = struct.Struct(">BHI").pack
_BODY_HEAD = struct.Struct(">BH").pack
_SIZE = struct.Struct(">I").unpack


class _Layout:
    """One layout.

    Attributes:
        unpack: splits a message into constants (even indexes) and values (odd indexes); the last is the body's size.
        constants: the constants.
        format: the frames up to the body.
        pick: the values for the format.
        size: where the body begins.
    """

    __slots__ = ("constants", "format", "pick", "size", "unpack")

    def __init__(
        self,
        layout: str,
        constants: list[bytes],
        size: int,
        form: bytes,
        indexes: list[int],
        begin: bytes,
        channel: int,
    ) -> None:
        self.unpack = struct.Struct(">" + layout).unpack_from
        self.constants = tuple(constants)
        self.size = size
        body = 2 * len(constants) - 1
        self.format = b"%b%%b%b\xce%b%%b" % (escaped(begin), form, escaped(_BODY_HEAD(wire.BODY, channel)))
        self.pick = picker([body, *indexes, body])


class Publications:
    """The layouts of one target's messages.

    Args:
        channel: the channel.
    """

    def __init__(self, channel: int) -> None:
        self._channel = channel
        self._layout: _Layout | None = None
        self._known: Known[_Layout] = Known()

    def frames(self, message: bytes, most: int) -> tuple[bytes, bytes, bytes] | None:
        """The frames of a message whose layout is that of an earlier one; None where it is not, or where the body has more than `most` bytes."""
        layout = self._layout
        if layout is None:
            return None
        size = len(message) - layout.size
        if not 0 < size <= most:
            return None
        fields = layout.unpack(message)
        if fields[0::2] != layout.constants or _SIZE(fields[-1])[0] != size:
            self._layout = None
            return None
        return layout.format % layout.pick(fields), message[layout.size :], wire.FRAME_END

    def learn(self, message: bytes, record: Record) -> None:
        """Learns the layout of a message; `record`: made of it, with exchange and routing key of the publication."""
        if not self._known.is_worth_examining:
            return
        try:
            found = message_slots(message)
        except (IndexError, KeyError, struct.error):  # it took the general path
            return
        if found is None:
            return
        slots, size = found
        front = message[:size]
        self._layout = self._known.find(front, slots, lambda: self._made(front, slots, record))

    def _made(self, front: bytes, slots: list[tuple[int, int]], record: Record) -> _Layout | None:
        empty = front[:-4] + bytes(4)
        template = template_of(empty, slots[:-1], _properties_of)
        if template is None or _properties_of(empty) != record.properties:
            return None
        form, order = template
        layout, constants = split_format(front, slots)
        begin = wire.publish_method(self._channel, record.exchange, record.routing_key)
        begin += _FRAME(wire.HEADER, self._channel, 12 + len(record.properties)) + struct.pack(">HH", wire.BASIC, 0)
        return _Layout(
            layout, constants, len(front), form, [2 * number + 1 for number in order], begin + bytes(4), self._channel
        )


def _properties_of(front: bytes) -> bytes | None:
    record = to_frequent(front)
    return None if record is None else record.properties
