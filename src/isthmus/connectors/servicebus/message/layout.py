"""The layout of an encoded message up to its body, shared by messages of one sender.

What it is: `Layout` splits a message in one step where its bytes equal those of earlier ones between the variable fields:
the broker's numbers, the MessageId, the later properties, the pairs of the application properties, and the body.
`Layouts` learns them. What it is not: the checks of the fields (`message_rewriter`), or the front alone (`front`).
Specification: OASIS AMQP 1.0 part 3.2.

Invariants:
    I1. Where a message has a layout's constants, and the body's size matches the message's end, its sections begin and end
        at the layout's offsets.
    I2. A layout is tried only after two messages with it: where none repeats, no time is lost.
"""

from __future__ import annotations

import struct

from isthmus.connectors.servicebus.message.front import Front

__all__ = ["BODY_BYTES", "LAYOUTS", "MESSAGE_ID", "PAIRS", "PROPERTIES", "Layout", "Layouts"]

# How many are kept: senders whose properties differ in length need many.
LAYOUTS = 64
MESSAGE_ID, PROPERTIES, PAIRS, BODY_BYTES = -7, -5, -3, -1
"""Indexes of the variable fields after those of the front: MessageId, the rest of the properties, the pairs of the
application properties, and the size of the body's contents."""
# Descriptor, size and count of the properties, code and length of the MessageId; up to the code of the body.
_PROPERTIES_HEAD_BYTES, _KIND_BYTES = 8, 4

# Front, head and size of the properties, head and size of the application properties, beginning of the body section.
_Key = tuple[Front, bytes, int, bytes, int, bytes]


class Layout:
    """One layout.

    Args:
        key: the common parts of all messages with it.

    Attributes:
        front: the front; its indexes precede the ones here.
        unpack: splits a message into constants (even indexes) and variable fields (odd indexes).
        constants: the constants at the even indexes.
        properties: the beginning of the properties.
        body: the beginning of the body section.
        size: the beginning of its contents.
    """

    __slots__ = ("body", "constants", "front", "properties", "size", "unpack")

    def __init__(self, key: _Key) -> None:
        self.front, self.properties, size, head, pairs, kind = key
        behind = size - _PROPERTIES_HEAD_BYTES - self.properties[-1]
        length = "I" if kind == b"\0Su\xb0" else "B"
        layout = (
            f"0s{_PROPERTIES_HEAD_BYTES}s{self.properties[-1]}s0s{behind}s{len(head)}s{pairs}s{_KIND_BYTES}s{length}"
        )
        made = struct.Struct(self.front.layout + layout)
        self.unpack = made.unpack_from
        self.constants = (*self.front.constants, self.properties, b"", head, kind)
        self.size = made.size
        self.body = made.size - _KIND_BYTES - struct.calcsize(">" + length)


class Layouts:
    """The layouts of one route's messages."""

    __slots__ = ("_known", "_last")

    def __init__(self) -> None:
        self._known: dict[_Key, Layout] = {}
        self._last: _Key | None = None

    def of(self, front: Front, data: bytes, properties: int, application: int, pairs: int, body: int) -> Layout | None:
        """The layout of a message with a MessageId, if the previous message had it, too (I2).

        Args:
            front: the message's.
            data: bytes that contain the message.
            properties: offset of the properties; they are a short list that begins with a short text.
            application: offset of the application properties.
            pairs: offset of their first key; equal to `application` if there are none.
            body: offset of the body section; it is a data section.
        """
        key = (
            front,
            data[properties : properties + _PROPERTIES_HEAD_BYTES],
            application - properties,
            data[application:pairs],
            body - pairs,
            data[body : body + _KIND_BYTES],
        )
        if body < pairs or properties + _PROPERTIES_HEAD_BYTES + key[1][-1] > application:
            return None  # a size within the message is wrong
        if key != self._last:
            self._last = key
            return None
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= LAYOUTS:
                self._known.clear()
            known = self._known[key] = Layout(key)
        return known
