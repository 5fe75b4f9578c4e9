"""What is known of one session of an entity, whether or not its messages are at hand.

What it is: the row of a session in memory and in the store, and how a message tells its session. What it is not: the
messages (`session.messages`), nor who may have them (`session.queue`).
Spec: docs/explanation/protocol.md, Sessions.

Invariants:
    I1. A session has a row in the store from its first durable message or state on until it has neither.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from isthmus.amqp import codec
from isthmus.entities.error import InvalidMessageError

if TYPE_CHECKING:
    from isthmus.entities.session.directory import SessionDirectory
    from isthmus.entities.session.hold import Hold
    from isthmus.entities.session.messages import SessionMessages

__all__ = ["Session", "pack_row", "session_id_of", "unpack_row"]

# Number of the messages, wall ms of the last change of the state, whether there is a state; then the state.
_ROW = struct.Struct(">IQB")
_GROUP_ID = 10  # the place of group-id among the properties
_NULLS = b"\x40" * _GROUP_ID


def pack_row(number: int, state_at_ms: int, state: bytes | None) -> bytes:
    """A session's row in the store."""
    return _ROW.pack(number, state_at_ms, state is not None) + (state or b"")


def unpack_row(row: bytes) -> tuple[int, int, bytes | None]:
    """Number, wall ms of the state's last change (0: never), and the state."""
    number, state_at_ms, has_state = _ROW.unpack_from(row)
    return number, state_at_ms, row[_ROW.size :] if has_state else None


class Session:
    """One session.

    Attributes:
        session_id: case-sensitive; may be empty.
        queue: the entity.
        number: under which its messages lie in the store; 0 until there are any.
        is_stored: whether a row is in the store, or staged.
        state_at_ms: wall time of the state's last change; 0 is never.
        state_bytes: size of the state; None if there is none.
        hold: by which a receiver has it; None if it is free.
        messages: None while they are not at hand.
        active_count: of messages, kept while they are not at hand; so are the next three.
        deferred_count: likewise.
        head: lowest sequence number that is not gone.
        last: highest sequence number.
    """

    __slots__ = (
        "active_count",
        "deferred_count",
        "head",
        "hold",
        "is_stored",
        "last",
        "messages",
        "number",
        "queue",
        "session_id",
        "state_at_ms",
        "state_bytes",
    )

    def __init__(self, queue: SessionDirectory, session_id: str, number: int = 0) -> None:
        self.queue = queue
        self.session_id = session_id
        self.number = number
        self.is_stored = False
        self.state_at_ms = 0
        self.state_bytes: int | None = None
        self.hold: Hold | None = None
        self.messages: SessionMessages | None = None
        self.active_count = 0
        self.deferred_count = 0
        self.head = 1
        self.last = 0

    @property
    def has_available(self) -> bool:
        """Whether a receiver would get a message."""
        return self.active_count > 0 if self.messages is None else self.messages.has_available

    @property
    def has_active(self) -> bool:
        """Whether there are active messages, locked ones included."""
        return (self.messages or self).active_count > 0

    @property
    def first(self) -> int:
        """A sequence number below which it has no active or deferred message."""
        if self.deferred_count if self.messages is None else self.messages.deferred_count:
            return 0
        return self.head if self.messages is None else self.messages.head

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left of it."""
        counts = self.messages or self
        return self.state_bytes is None and not counts.active_count and not counts.deferred_count

    def expire_messages(self, first: int, last: int, now_ms: int, limit: int) -> tuple[int, int] | None:
        """As `Queue.expire_messages`, of this session's messages."""
        return self.queue.messages_of(self).expire_messages(first, last, now_ms, limit)


def session_id_of(rest: bytes) -> str | None:
    """The session that a message names (group-id); None if it names none.

    Args:
        rest: the message from its properties on.

    Raises:
        InvalidMessageError: group-id is no string, or cannot be read.
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
            at += left  # nothing between the message-id, or what else was set, and the group-id
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
        raise InvalidMessageError("the SessionId (group-id) is no string")
    return str(value)
