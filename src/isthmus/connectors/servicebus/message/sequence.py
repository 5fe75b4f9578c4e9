"""Sequence numbers of many encoded messages at once, and the broker's annotations of one.

What it is: finds `x-opt-sequence-number` in each of a run of messages. A broker writes its annotations alike in every
message, so the offset found in the first is tried in the others; a message is searched only where that fails.

Invariants:
    I1. The result is the value that decoding the message annotations would give.
    I2. Only requested annotations are decoded: the sender's may be unreadable.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from operator import eq
from typing import Any

from isthmus.amqp import codec, section
from isthmus.amqp.codec import CodecError

__all__ = [
    "ONLY_LOCK_TOKEN",
    "UNREADABLE",
    "SequenceFinder",
    "annotations_of",
    "broker_times_of",
    "enqueued_ms_of",
    "sequence_of",
    "sequences_of",
]

# The exceptions of parsing malformed bytes.
UNREADABLE = (CodecError, ValueError, IndexError, struct.error)

ONLY_LOCK_TOKEN = b"\0Sq\xc1\x24\x02\xa3\x10x-opt-lock-token\x98"
"""Delivery annotations that contain only the lock token, up to its sixteen bytes."""
_NAME = b"\xa3\x15x-opt-sequence-number\x81"
_SEQUENCE, _ENQUEUED, _LOCKED_UNTIL = "x-opt-sequence-number", "x-opt-enqueued-time", "x-opt-locked-until"
# Codes of symbols and strings of less than 256 bytes.
_SHORT_KEYS = (0xA3, 0xA1)
_LONG = struct.Struct(">q").unpack_from


def sequence_of(message: bytes) -> int:
    """The sequence number of one message.

    Raises:
        CodecError: it has none.
    """
    found = annotations_of(message, _SEQUENCE).get(_SEQUENCE)
    if not isinstance(found, int):
        raise CodecError("the broker delivered a message without x-opt-sequence-number")
    return found


def enqueued_ms_of(message: bytes) -> int:
    """When the message was enqueued, in milliseconds since the epoch; 0 if unknown."""
    found = annotations_of(message, _ENQUEUED).get(_ENQUEUED)
    return found if isinstance(found, int) else 0


def broker_times_of(message: bytes) -> tuple[int, int]:
    """When a message was enqueued, and until when it is locked, in milliseconds since the epoch by the broker's clock; 0 where
    unknown or unreadable.
    """
    try:
        found = annotations_of(message, _ENQUEUED, _LOCKED_UNTIL)
    except UNREADABLE:
        return 0, 0  # the parser reports the fault
    enqueued_ms, locked_until_ms = found.get(_ENQUEUED), found.get(_LOCKED_UNTIL)
    return (
        enqueued_ms if isinstance(enqueued_ms, int) else 0,
        locked_until_ms if isinstance(locked_until_ms, int) else 0,
    )


def annotations_of(message: bytes, *names: str) -> dict[str, Any]:
    """A message's annotations with these names.

    Raises:
        CodecError: the bytes are not a message.
    """
    found: dict[str, Any] = {}
    for key, value, _ in section.map_items(message, section.locate(message).message_annotations):
        name = message[key + (2 if message[key] in _SHORT_KEYS else 5) : value]
        for wanted in names:
            if name == wanted.encode():
                found[wanted] = codec.decode(message, value)[0]
    return found


def sequences_of(messages: Sequence[bytes]) -> Sequence[int]:
    """The sequence numbers of messages; a range where they are consecutive."""
    return SequenceFinder().of(messages)


class SequenceFinder:
    """Finds sequence numbers at the offset of the previous message's; for the messages of one link.

    Single messages cost as little as long runs.
    """

    __slots__ = ("_offsets",)

    def __init__(self) -> None:
        self._offsets: _Offsets | None = None

    def of(self, messages: Sequence[bytes]) -> Sequence[int]:
        """The sequence numbers of messages; a range where they are consecutive.

        Raises:
            CodecError: one has none, or cannot be read.
        """
        offsets = self._offsets
        if offsets is None or not offsets.fits(messages[0]):
            offsets = _Offsets(messages[0])
            self._offsets = offsets if offsets.name_at else None
        if len(messages) == 1 and offsets.name_at:
            first = _LONG(messages[0], offsets.value_at)[0]
            return range(first, first + 1)
        found: list[int] = []
        add = found.append
        name_at, value_at, annotations_at, head = (
            offsets.name_at,
            offsets.value_at,
            offsets.annotations_at,
            offsets.head,
        )
        token_at, token = offsets.token_at, offsets.token
        for message in messages:
            if (  # as `fits`, which would take a call for each message
                message[name_at:value_at] == _NAME
                and message[annotations_at : annotations_at + 3] == b"\0Sr"
                and message[:8] == head
                and message.startswith(token, token_at)
            ):
                add(_LONG(message, value_at)[0])
            else:
                add(sequence_of(message))
        count = len(found)
        if found[-1] - found[0] == count - 1 and all(map(eq, found, range(found[0], found[0] + count))):
            return range(found[0], found[0] + count)
        return found


class _Offsets:
    """The offset of a broker's sequence number: after a header of the same size and possibly a lock token, within the message
    annotations.
    """

    __slots__ = ("annotations_at", "head", "name_at", "token", "token_at", "value_at")

    def __init__(self, message: bytes) -> None:
        sections = section.locate(message)
        low, high = sections.message_annotations
        at = message.find(_NAME, low, high)
        self.token_at = sections.header[1]
        self.token = ONLY_LOCK_TOKEN if message.startswith(ONLY_LOCK_TOKEN, self.token_at) else b""
        broker_bytes = len(self.token) + 16 if self.token else 0
        # After other bytes than the broker's, the same bytes in another message may be a sender's.
        known = (
            at > 0
            and low == self.token_at + broker_bytes
            and _LONG(message, at + len(_NAME))[0] == sequence_of(message)
        )
        self.name_at = at if known else 0
        self.value_at = self.name_at + len(_NAME)
        self.annotations_at = low
        self.head = message[:8]

    def fits(self, message: bytes) -> bool:
        """Whether a message has its sequence number at this offset, too."""
        return (
            message[self.name_at : self.value_at] == _NAME
            and message[self.annotations_at : self.annotations_at + 3] == b"\0Sr"
            and message[:8] == self.head
            and message.startswith(self.token, self.token_at)
        )
