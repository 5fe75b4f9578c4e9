"""A session in the store: its row, and the id by which a message names it.

What it is: the form of the row, the values of a session without its messages, and the reading of group-id. What it is
not: the messages (`session.messages`). Spec: docs/explanation/protocol.md, Sessions.
"""

from __future__ import annotations

import struct

from isthmus.amqp import codec
from isthmus.entities.error import InvalidMessageError

__all__ = ["SessionRow", "pack_row", "session_id_of", "unpack_row"]

# Number of the messages, wall ms of the last change of the state, whether there is a state; then the state.
_ROW = struct.Struct(">IQB")
_GROUP_ID = 10  # the index of group-id among the properties
_NULLS = b"\x40" * _GROUP_ID


def pack_row(number: int, state_at_ms: int, state: bytes | None) -> bytes:
    """A session's row in the store."""
    return _ROW.pack(number, state_at_ms, state is not None) + (state or b"")


def unpack_row(row: bytes) -> tuple[int, int, bytes | None]:
    """Number, wall ms of the state's last change (0: never), and the state."""
    number, state_at_ms, has_state = _ROW.unpack_from(row)
    return number, state_at_ms, row[_ROW.size :] if has_state else None


class SessionRow:
    """The values of one session while its messages are not loaded.

    Attributes:
        session_id: case-sensitive; may be empty.
        number: under which its messages are in the store; 0 until there are any.
        is_stored: whether a row is in the store, or staged.
        state_at_ms: wall time of the state's last change; 0 is never.
        state_bytes: size of the state; None if there is none.
        active_count: of messages, kept while they are not loaded; so are the next three.
        deferred_count: likewise.
        head: lowest sequence number that is not removed.
        last: highest sequence number.
    """

    __slots__ = (
        "active_count",
        "deferred_count",
        "head",
        "is_stored",
        "last",
        "number",
        "session_id",
        "state_at_ms",
        "state_bytes",
    )

    def __init__(self, session_id: str, number: int = 0) -> None:
        self.session_id = session_id
        self.number = number
        self.is_stored = False
        self.state_at_ms = 0
        self.state_bytes: int | None = None
        self.active_count = 0
        self.deferred_count = 0
        self.head = 1
        self.last = 0


def session_id_of(rest: bytes) -> str | None:
    """The session id of a message (group-id); None if it has none.

    Args:
        rest: the message from its properties on.

    Raises:
        InvalidMessageError: group-id is not a string, or cannot be read.
    """
    try:
        return _group_id(rest)
    except (IndexError, ValueError, codec.CodecError) as error:
        raise InvalidMessageError(f"the SessionId (group-id) cannot be read: {error}") from None


def _group_id(rest: bytes) -> str | None:
    if rest[:3] != b"\0Ss":
        return None
    code = rest[3]
    if code == 0xC0:
        count, at = rest[5], 6
    elif code == 0xD0:
        count, at = int.from_bytes(rest[8:12], "big"), 12
    else:
        return None
    if count <= _GROUP_ID:
        return None
    left = _GROUP_ID
    while left:
        code = rest[at]
        if code == 0xA1:
            at += 2 + rest[at + 1]
        elif code != 0x40:
            at = codec.value_end(rest, at)
        elif left < _GROUP_ID and rest[at : at + left] == _NULLS[:left]:
            at += left  # no field is set between the message-id, or the last one before, and the group-id
            break
        else:
            at += 1
        left -= 1
    code = rest[at]
    if code == 0xA1:
        return rest[at + 2 : at + 2 + rest[at + 1]].decode()
    if code == 0x40:
        return None
    value = codec.decode(rest, at)[0]
    if not isinstance(value, str):
        raise InvalidMessageError("the SessionId (group-id) is not a string")
    return str(value)
