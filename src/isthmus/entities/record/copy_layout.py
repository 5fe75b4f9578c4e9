"""The layout of copies in one envelope: a route's copies mostly have parts of equal lengths.

What it is: `CopyLayout` reads a copy and its duplicate key in one step, where its bytes equal those of an earlier one between
the parts that differ from copy to copy: MessageId, further properties, the sender's application properties, the sequence number,
offset, time and digest of the provenance, and the body. What it is not: the reading of other messages (`parse`) or keys (`copy`).
Specification: OASIS AMQP 1.0 part 3.2; `isthmus.message.duplicate_key`.

Invariants:
    I1. What is read by a layout is what `parse.split_packed` reads without one; a copy that it may read in another way is not read here.
"""

from __future__ import annotations

import re
import struct
from itertools import pairwise

from isthmus.entities.record.copy import NUMBER_BYTES, OF_OFFSET, OF_TIME, KeyReader
from isthmus.entities.record.record import Head, Parts

__all__ = ["CopyLayout"]

# The head of the properties with their size and count; code and length of the MessageId; descriptor, size and count of the
# application properties; descriptor and code of a body of one data section.
_PROPERTIES, _ID, _APPLICATION, _BODY = 6, 2, 12, 4
_SIZES = {b"\0Su\xb0": "I", b"\0Su\xa0": "B"}
_TIME = 9  # index of the time among the fields
_new = tuple.__new__  # as in `parse`


class CopyLayout:
    """The layout of one copy.

    Args:
        data: bytes that contain the copy.
        start: where it begins.
        properties: where its properties begin; they are a short list that begins with a short text.
        application: where its application properties begin; they have a wide size.
        body: where its body begins.
        head: the part before the properties.
        keys: has read its key.
        found: where the parts of its key are.
    """

    __slots__ = (
        "_constants",
        "_from",
        "_front",
        "_head",
        "_id",
        "_rest",
        "_size",
        "_source",
        "_time",
        "_to",
        "_unpack",
    )

    def __init__(
        self,
        data: bytes,
        start: int,
        properties: int,
        application: int,
        body: int,
        head: Head,
        keys: KeyReader,
        found: re.Match[bytes],
    ) -> None:
        at = properties + _PROPERTIES + _ID
        after = at + data[at - 1]
        kind = data[body : body + _BODY]
        # Constants and variable parts in turn; the rest of the properties, after the MessageId, is not looked at.
        ends = (
            *(application, application + _APPLICATION, found.start()),
            *(found.start(2), found.end(2), found.start(3), found.end(3), found.start(4), found.end(4)),
            *(found.start(5), body, body + _BODY),
        )
        sizes = "".join(f"{end - begin}s" for begin, end in pairwise(ends))
        layout = struct.Struct(f">{at - start}s{after - at}s{application - after}x{sizes}{_SIZES[kind]}")
        fields = layout.unpack_from(data, start)
        self._size, self._unpack = layout.size, layout.unpack_from
        self._constants, self._time = fields[::2], fields[_TIME]
        self._head, self._rest = head, properties - start
        self._id = data[at - _ID : at]
        self._from, self._to = found.start(1) - start, found.end(1) - start
        self._front, self._source = keys.front, keys.source

    def read(self, data: bytes, start: int, stop: int) -> Parts | None:
        """The copy in `data[start:stop]`; None where it has another layout."""
        body_at = start + self._size
        if body_at > stop:
            return None
        fields = self._unpack(data, start)
        if body_at + fields[-1] != stop or fields[::2] != self._constants:
            return None
        _, message_id, _, _, _, number, _, offset, _, time, _, digest, _, _ = fields
        if not (
            number.isdigit()
            and number[0] != 0x30
            and digest.isalnum()
            and not offset.translate(None, OF_OFFSET)
            and (time == self._time or not time.translate(None, OF_TIME))
        ):
            return None
        self._time = time
        hashed = self._front.copy()
        hashed.update(data[start + self._from : start + self._to])
        key = hashed.digest() + self._source + int(number).to_bytes(NUMBER_BYTES, "big")
        parts: Parts = _new(Parts, (self._head, data[start + self._rest : stop], self._id + message_id, None, key))
        return parts

    @classmethod
    def of(
        cls, data: bytes, start: int, properties: int, application: int, body: int, head: Head, keys: KeyReader
    ) -> CopyLayout | None:
        """The layout of a copy whose key was just read; None where others are not like it. Arguments as for the class."""
        found = keys.found(data, application + _APPLICATION, body)
        return None if found is None else cls(data, start, properties, application, body, head, keys, found)
