"""The batch message format 0x80013700: one transfer that contains many messages.

What it is: finding the messages in an envelope. They are cut out only when one is accessed: an entity reads them in
the envelope (`parse.split_packed`). Spec: docs/explanation/protocol.md, Sending, Message.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import overload

from isthmus.entities.error import BatchTooLongError, InvalidMessageError
from isthmus.entities.record.copy import Copy

__all__ = ["BATCH_FORMAT", "Packed", "unpack"]

BATCH_FORMAT = 0x80013700

_DATA = b"\0Su\xb0"
_DATA_HEAD = struct.Struct(">4sI")


class Packed(Sequence[bytes]):
    """The messages of an envelope, in order.

    Args:
        data: the envelope.
        bounds: start and end of each message in it.
        sizes: how many bytes each message has.
        are_copies: whether they are a route's copies; each is a `Copy` then.

    Attributes:
        data, bounds, sizes, are_copies: the arguments.
    """

    __slots__ = ("are_copies", "bounds", "data", "sizes")

    def __init__(
        self, data: bytes, bounds: list[tuple[int, int]], sizes: list[int], *, are_copies: bool = False
    ) -> None:
        self.data = data
        self.bounds = bounds
        self.sizes = sizes
        self.are_copies = are_copies

    def __len__(self) -> int:
        return len(self.bounds)

    def __iter__(self) -> Iterator[bytes]:
        data = self.data
        cut = (data[start:stop] for start, stop in self.bounds)
        return map(Copy, cut) if self.are_copies else cut

    @overload
    def __getitem__(self, at: int) -> bytes: ...
    @overload
    def __getitem__(self, at: slice) -> Packed: ...
    def __getitem__(self, at: int | slice) -> bytes | Packed:
        if isinstance(at, slice):
            return Packed(self.data, self.bounds[at], self.sizes[at], are_copies=self.are_copies)
        start, stop = self.bounds[at]
        return Copy(self.data[start:stop]) if self.are_copies else self.data[start:stop]


def unpack(payload: bytes, most: int | None = None, *, are_copies: bool = False) -> Packed:
    """The messages of a batch envelope, each an encoded message, in order.

    Sections other than data (the envelope repeats properties of the first message) are skipped.

    Args:
        payload: the envelope, encoded.
        most: the limit of messages; None for any number.
        are_copies: whether they are a route's copies.

    Raises:
        BatchTooLongError: it has more.
        InvalidMessageError: the envelope is cut off or contains something other than sections.
    """
    bounds: list[tuple[int, int]] = []
    sizes: list[int] = []
    add, add_size, read = bounds.append, sizes.append, _DATA_HEAD.unpack_from
    at, end = 0, len(payload)
    while at < end:
        head, size = read(payload, at) if at + 8 <= end else (b"", 0)
        if head == _DATA:
            start = at + 8
            at = start + size
            if at > end:
                raise InvalidMessageError(f"batch envelope: section at byte {start - 8} is cut off")
            add((start, at))
            add_size(size)
        else:
            start, stop = _section(payload, at, end)
            if payload[at + 2] == 0x75:
                add((start, stop))
                add_size(stop - start)
            at = stop
    if not bounds:
        raise InvalidMessageError("batch envelope contains no message")
    if most is not None and len(bounds) > most:
        raise BatchTooLongError(most)
    return Packed(payload, bounds, sizes, are_copies=are_copies)


def _section(payload: bytes, at: int, end: int) -> tuple[int, int]:
    """The start and end of any section's contents.

    Raises:
        InvalidMessageError: it is not a section, or is cut off.
    """
    try:
        if payload[at] or payload[at + 1] != 0x53:
            raise InvalidMessageError(f"batch envelope: no section descriptor at byte {at}")
        width = payload[at + 3] >> 4
        if width == 0x4:
            start = stop = at + 4
        elif width in (0xA, 0xC, 0xE):
            start, stop = at + 5, at + 5 + payload[at + 4]
        else:
            start = at + 8
            stop = start + int.from_bytes(payload[at + 4 : start], "big")
    except IndexError:
        raise InvalidMessageError("batch envelope is cut off") from None
    if stop > end:
        raise InvalidMessageError(f"batch envelope: section at byte {at} is cut off")
    return start, stop
