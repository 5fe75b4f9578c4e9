"""A MessageId made of a record's position.

What it is: the addition of `topic/partition/offset` to an encoded message that has no MessageId, pure. A record that is read again has the
same one, so that duplicate detection drops its second copy. What it is not: the mapping (`mapping`).
Specification: OASIS AMQP 1.0 part 3, 3.2.4 (properties).

Invariants:
    I1. A message with a MessageId is not changed; no other part of any message is.
"""

from __future__ import annotations

from isthmus.amqp import section
from isthmus.bridge.port import PARTITION_SHIFT

__all__ = ["MESSAGE_ID_CHARACTERS", "MessageIds", "message_id"]

# Azure Service Bus: the limit of a MessageId.
MESSAGE_ID_CHARACTERS = 128

_LIST8 = b"\0Ss\xc0"
_NULL = 0x40


def message_id(topic: str, position: int) -> str:
    """The MessageId of the record at a position; a long topic's name is truncated."""
    suffix = f"/{position >> PARTITION_SHIFT}/{position % (1 << PARTITION_SHIFT)}"
    return topic[: MESSAGE_ID_CHARACTERS - len(suffix)] + suffix


class MessageIds:
    """Adds MessageIds to the messages of one topic."""

    def __init__(self, topic: str) -> None:
        self._topic = topic

    def add(self, message: bytes, position: int) -> bytes:
        """The message with a MessageId."""
        identity = message_id(self._topic, position)
        # The frequent form: annotations in a short map, then properties in a short list that begins with null.
        at = 5 + message[4] if message[2:4] == b"r\xc1" else 0
        if at and message[at : at + 4] == _LIST8 and message[at + 6] == _NULL:
            size = message[at + 4] + len(identity) + 1
            if size < 256:
                text = identity.encode()
                return b"%b%c%c\xa1%c%b%b" % (
                    message[: at + 4],
                    size,
                    message[at + 5],
                    len(text),
                    text,
                    message[at + 7 :],
                )
        return _add(message, identity)


def _add(message: bytes, identity: str) -> bytes:
    found = section.locate(message)
    start, end = found.properties
    fields = section.decode_properties(message, found.properties)
    if fields.get("message_id") is not None:
        return message
    properties = section.encode_properties({**fields, "message_id": identity})
    if end:
        return message[:start] + properties + message[end:]
    at = max(found.header[1], found.message_annotations[1], found.delivery_annotations[1])
    return message[:at] + properties + message[at:]
