"""The batch message format 0x80013700: one transfer that carries many messages.

What it is: unpacking an envelope into its messages. Spec: docs/explanation/protocol.md, Sending, Message.
"""

from __future__ import annotations

from isthmus.entities.error import BatchTooLongError, InvalidMessageError

__all__ = ["BATCH_FORMAT", "unpack"]

BATCH_FORMAT = 0x80013700


def unpack(payload: bytes, most: int | None = None) -> list[bytes]:
    """The messages of a batch envelope, each an encoded message, in order.

    Sections other than data (the envelope repeats properties of the first message) are passed over.

    Args:
        payload: the envelope, encoded.
        most: how many messages it may have; None for any number.

    Raises:
        BatchTooLongError: it has more.
        InvalidMessageError: the envelope is cut off or holds something else than sections.
    """
    end = len(payload)
    at = 0
    messages: list[bytes] = []
    try:
        while at < end:
            if payload[at] or payload[at + 1] != 0x53:
                raise InvalidMessageError(f"batch envelope: no section descriptor at byte {at}")
            kind, code = payload[at + 2], payload[at + 3]
            width = code >> 4
            if width == 0x4:
                start = stop = at + 4
            elif width in (0xA, 0xC, 0xE):
                start, stop = at + 5, at + 5 + payload[at + 4]
            else:
                start = at + 8
                stop = start + int.from_bytes(payload[at + 4 : start], "big")
            if stop > end:
                raise InvalidMessageError(f"batch envelope: section at byte {at} is cut off")
            if kind == 0x75:
                if len(messages) == most:
                    raise BatchTooLongError(most)
                messages.append(payload[start:stop])
            at = stop
    except IndexError:
        raise InvalidMessageError("batch envelope is cut off") from None
    if not messages:
        raise InvalidMessageError("batch envelope holds no message")
    return messages
