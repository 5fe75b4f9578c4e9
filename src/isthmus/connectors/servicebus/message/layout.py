"""How an encoded message is laid out up to its body: what messages of one sender have in common.

What it is: `Layout` takes a message apart in one step where it has the bytes of others between what differs from message to
message: the broker's numbers, the MessageId, the properties behind it, the pairs of the application properties, and the body.
`Layouts` learns them. What it is not: the judgement of what is found (`message_rewriter`), or the front alone (`front`).
Specification: OASIS AMQP 1.0 part 3.2.

Invariants:
    I1. Where a message has a layout's constants, and the body's size leads to the message's end, its sections begin and end
        where the layout says.
    I2. A layout is tried only behind two messages that had it: where none repeats, no time is lost on them.
"""

from __future__ import annotations

import struct

from isthmus.connectors.servicebus.message.front import Front

__all__ = ["BODY_BYTES", "LAYOUTS", "MESSAGE_ID", "PAIRS", "PROPERTIES", "Layout", "Layouts"]

# How many are remembered: senders whose properties differ in length make many.
LAYOUTS = 64
MESSAGE_ID, PROPERTIES, PAIRS, BODY_BYTES = -7, -5, -3, -1
"""Places of what differs, behind those of the front: MessageId, what follows it in the properties, the pairs of the
application properties, and the size of the body's contents."""
# Descriptor, size and count of the properties, code and length of the MessageId; up to the code of the body.
_PROPERTIES_HEAD_BYTES, _KIND_BYTES = 8, 4

# Front, head and size of the properties, head and size of the application properties, beginning of the body section.
_Key = tuple[Front, bytes, int, bytes, int, bytes]


class Layout:
    """One layout.

    Args:
        key: what all messages with it have in common.

    Attributes:
        front: the front; its places are the first ones here.
        unpack: takes a message apart into constants (even places) and what differs (odd places).
        constants: what the even places must be.
        properties: what the properties begin with.
        body: where the section of the body begins.
        size: where its contents begin.
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
        """The layout of a message with a MessageId, once it was that of the one before as well (I2).

        Args:
            front: the message's.
            data: bytes that hold it.
            properties: where these begin; they are a short list that begins with a short text.
            application: where the application properties begin.
            pairs: where their first key is; as `application`, if there are none.
            body: where its section begins; it is one of data.
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
