"""Messages of Queue Storage as encoded AMQP messages, and back.

What it is: the mapping in both directions, pure; docs/how-to/use-queue-storage.md describes it for users. What it is not: a client.
Specification: Microsoft Learn, "Put Message" and "Get Messages" (Queue Storage REST API): a message is text of 64 KiB at most, which
must be valid in XML.

Invariants:
    I1. `to_message(to_text(message))` is equivalent to the message, unless the form is `body`.
    I2. The same message of a queue becomes the same AMQP message each time that it is read.
    I3. Any message of a queue fits its poison queue: if necessary without the reason, or as its body alone.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from contextlib import suppress

from isthmus.amqp import section
from isthmus.connectors.wrap import cloud_event_message, envelope
from isthmus.connectors.wrap.arrival import annotated, with_properties
from isthmus.connectors.wrap.body import body_of

__all__ = ["LIMIT_BYTES", "TextError", "poison_text", "to_message", "to_text"]

LIMIT_BYTES = 64 << 10
# The maximum of AMQP 1.0 (49 days).
_LONGEST_TTL_MS = 0xFFFFFFFF
# XML 1.0 allows no others, and a parser converts a carriage return to a line feed.
_NO_XML = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class TextError(ValueError):
    """A message does not fit a queue, or a text of a queue is unreadable."""


def to_text(message: bytes, form: str, encoding: str, source: str = "") -> str:
    """The text of a message.

    Args:
        message: encoded.
        form: `envelope`, `cloudevents` or `body`.
        encoding: `base64` or `text`.
        source: a CloudEvent's source.

    Raises:
        CodecError: it is not a message.
        TextError: it cannot be written as text.
    """
    if form == "body":
        body = body_of(message)
    elif form == "cloudevents":
        body = cloud_event_message.to_json(message, source)
    else:
        body = envelope.wrap(message)
    if encoding == "base64":
        return base64.b64encode(body).decode()
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise TextError("the body is not UTF-8 text; write encoding: base64") from error
    found = _NO_XML.search(text)
    if found is not None:
        raise TextError(
            f"the body has the character U+{ord(found[0]):04X}, which XML does not allow; write encoding: base64"
        )
    return text


def poison_text(message: bytes, reason: Mapping[str, str], encoding: str) -> str:
    """The text of a queue's message for its poison queue.

    Args:
        message: as `to_message` made it; of an unreadable text its body.
        reason: application properties with the reason.
        encoding: as in `to_text`.

    Raises:
        CodecError: it is not a message.
    """
    for each, form in ((with_properties(message, reason), "envelope"), (message, "envelope"), (message, "body")):
        with suppress(TextError):
            text = to_text(each, form, encoding)
            if len(text.encode()) <= LIMIT_BYTES:
                return text
    # A text in another encoding than the queue's, without room for more.
    return body_of(message).decode(errors="replace")


def to_message(text: str, encoding: str, *, name: str, message_id: str, enqueued_ms: int, expires_ms: int) -> bytes:
    """The message of a text.

    Args:
        text: the text in the queue.
        encoding: `base64` or `text`.
        name: account, queue and insertion id.
        message_id: for a message without one: the insertion id.
        enqueued_ms: when it was enqueued there.
        expires_ms: when it expires there; 0: never.

    Raises:
        TextError: it is not in this encoding.
    """
    if encoding == "base64":
        try:
            body = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError) as error:
            raise TextError("the message is not base64; write encoding: text") from error
    else:
        body = text.encode()
    life_ms = max(expires_ms - enqueued_ms, 1)
    ttl_ms = life_ms if expires_ms and life_ms < _LONGEST_TTL_MS else 0
    message = envelope.unwrap(body) or cloud_event_message.from_json(body) or section.encode_message(body)
    return annotated(message, name=name, enqueued_ms=enqueued_ms, message_id=message_id, ttl_ms=ttl_ms)
