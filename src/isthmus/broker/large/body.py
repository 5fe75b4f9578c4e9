"""The start of an encoded message's body, and its validation while it arrives.

What it is: a walk over the sections of a message that is never in memory as a whole. What it is not: reading
the sections before the body (`isthmus.entities.record.parse`).
Spec: AMQP 1.0 part 3.2, part 1.2.

Invariants:
    I1. Everything that `BodyScan` accepts, `section.locate` would accept.
"""

from __future__ import annotations

from isthmus.amqp.codec import CodecError, value_end
from isthmus.amqp.section import APPLICATION_PROPERTIES, DATA, FOOTER, HEADER
from isthmus.entities import InvalidMessageError

__all__ = ["BodyScan", "front_end"]

# Width of a value by the first four bits of its constructor; variable ones have a size field of so many bytes.
_FIXED = {0x4: 0, 0x5: 1, 0x6: 2, 0x7: 4, 0x8: 8, 0x9: 16}
_SIZED = {0xA: 1, 0xB: 4, 0xC: 1, 0xD: 4, 0xE: 1, 0xF: 4}


def front_end(start: bytes) -> int:
    """The offset of a message's body, given its first bytes.

    Raises:
        InvalidMessageError: it is not a message, or its body begins later.
    """
    at = 0
    try:
        while start[at] == 0 and start[at + 1] == 0x53 and HEADER <= start[at + 2] <= APPLICATION_PROPERTIES:
            at = value_end(start, at + 3)
        if start[at] == 0 and start[at + 1] == 0x53 and DATA <= start[at + 2] < FOOTER:
            return at
    except (IndexError, CodecError, ValueError):
        pass
    raise InvalidMessageError(
        f"no body begins in the first {len(start)} bytes of the payload: it is not an AMQP message, or its properties and "
        "annotations are too large"
    )


class BodyScan:
    """Takes body sections and a footer in pieces."""

    __slots__ = ("_footer", "_held", "_skip", "_values")

    def __init__(self) -> None:
        self._skip = 0
        self._held = b""
        self._values = 0
        self._footer = False

    def feed(self, piece: bytes) -> None:
        """Takes the next bytes.

        Raises:
            InvalidMessageError: they are not part of a body.
        """
        if self._skip >= len(piece):
            self._skip -= len(piece)
            return
        data = self._held + piece[self._skip :]
        self._held, self._skip = b"", 0
        at, end = 0, len(data)
        while at < end:
            after = self._pass(data, at)
            if after is None:
                self._held = data[at:]
                return
            at = after
        self._skip = at - end

    def end(self) -> None:
        """Ends the body.

        Raises:
            InvalidMessageError: it is incomplete.
        """
        if self._skip or self._held or self._values:
            raise InvalidMessageError("the payload is not an AMQP message: its last section is cut off")

    def _pass(self, data: bytes, at: int) -> int | None:
        """The end of the value or section that begins at `at`; None if too few bytes are there to know."""
        left = len(data) - at
        if not self._values:
            if left < 3:
                return None
            code = data[at + 2]
            if data[at] or data[at + 1] != 0x53 or self._footer or not DATA <= code <= FOOTER:
                raise InvalidMessageError("the payload is not an AMQP message: something else follows its body")
            self._footer = code == FOOTER
            self._values = 1
            return at + 3
        code = data[at]
        if code == 0:  # a described value is its descriptor and its value
            self._values += 1
            return at + 1
        width = _FIXED.get(code >> 4)
        if width is not None:
            self._values -= 1
            return at + 1 + width
        size = _SIZED.get(code >> 4)
        if size is None:
            raise InvalidMessageError(f"the payload is not an AMQP message: 0x{code:02x} begins no value")
        if left < 1 + size:
            return None
        self._values -= 1
        return at + 1 + size + int.from_bytes(data[at + 1 : at + 1 + size], "big")
