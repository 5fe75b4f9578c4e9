"""Messages as the body and the headers of HTTP requests, and back.

What it is: the mapping in both directions, pure. Specification: CloudEvents 1.0.2, "HTTP Protocol Binding"; docs/how-to/use-http.md.

| mode | body | headers |
| --- | --- | --- |
| structured | the CloudEvent, JSON | Content-Type: application/cloudevents+json |
| binary | the message's body | ce-…, Content-Type |
| body | the message's body | isthmus-property-…, isthmus-message-id, Content-Type |

Binary and body mode carry the note (`isthmus.connectors.wrap.note`) in another header, `ce-isthmusnote` or `isthmus-note`.

Invariants:
    I1. `to_messages(to_request(message))` is equivalent to the message.
    I2. Header values are printable ASCII, percent-encoded as the binding requires.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import blake2b
from typing import NamedTuple
from urllib.parse import quote, unquote

from isthmus.amqp import section
from isthmus.connectors.kafka.mapping.mapping import to_message, to_record
from isthmus.connectors.wrap import cloud_event_message, envelope
from isthmus.connectors.wrap.arrival import message_id_of
from isthmus.connectors.wrap.note import note_of, read_note, record_of
from isthmus.message.duplicate_key import duplicate_key, made_message_id
from isthmus.message.json_number import read_json

__all__ = [
    "BATCH_CONTENT_TYPE",
    "HEADER_BYTES",
    "HeadersTooLargeError",
    "Request",
    "event_id_of",
    "to_messages",
    "to_request",
]

BATCH_CONTENT_TYPE = "application/cloudevents-batch+json"
# The limit of common servers for all headers.
HEADER_BYTES = 8000
_ID_BYTES = 256
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_SAFE = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%') + " "


class HeadersTooLargeError(ValueError):
    """The properties of a message do not fit into headers."""


class Request(NamedTuple):
    """The request to post.

    Attributes:
        event_id: the same each time that the message is sent, and unique to the message (`event_id_of`).
    """

    event_id: str
    headers: dict[str, str]
    body: bytes


def event_id_of(message: bytes, attributes: Mapping[str, str]) -> str:
    """The id by which a receiver recognises a message that is sent again, as a header value: of a copy, the position at which it entered the
    federation, because two publishers may use the same message ids.
    """
    key = duplicate_key(message, *section.locate(message).application_properties)
    return made_message_id(key) if key else _header_id(attributes["id"])


def _header_id(text: str) -> str:
    """An id as a header value; a digest of an id that is too long for a header."""
    quoted = quote(text, safe=_SAFE)
    return quoted if len(quoted) <= _ID_BYTES else blake2b(quoted.encode(), digest_size=16).hexdigest()


def to_request(message: bytes, mode: str, source: str) -> Request:
    """The request of a message.

    Args:
        message: encoded.
        mode: `structured`, `binary` or `body`.
        source: a CloudEvent's source where the message names none.

    Raises:
        CodecError: it is not a message.
        HeadersTooLargeError: its properties are too large for headers.
    """
    attributes = cloud_event_message.attributes_of(message, source)
    event_id = event_id_of(message, attributes)
    if mode == "structured":
        body = cloud_event_message.to_json(message, source)
        return Request(event_id, {"content-type": f"{cloud_event_message.CONTENT_TYPE}; charset=utf-8"}, body)
    record = to_record(message)
    note = quote(note_of(record, mode="none") if record.value is None else note_of(record), safe=_SAFE)
    media = attributes.pop("datacontenttype", "") or "application/octet-stream"
    headers = {"content-type": quote(media, safe=_SAFE)}
    if mode == "binary":
        headers |= {
            f"ce-{name}": quote(value, safe=_SAFE) for name, value in attributes.items() if _TOKEN.fullmatch(name)
        }
        headers[f"ce-{cloud_event_message.NOTE}"] = note
    else:
        headers |= {"isthmus-message-id": _header_id(attributes["id"]), "isthmus-note": note}
        found = section.locate(message)
        for name, value in section.decode_map(message, found.application_properties).items():
            if isinstance(name, str) and _TOKEN.fullmatch(name) and isinstance(value, str | int | float):
                headers[f"isthmus-property-{name}"] = quote(str(value), safe=_SAFE)
    size = sum(len(name) + len(value) + 4 for name, value in headers.items())
    if size > HEADER_BYTES:
        raise HeadersTooLargeError(
            f"its properties take {size} bytes as headers, {HEADER_BYTES} are accepted; write mode: structured"
        )
    return Request(event_id, headers, record.value or b"")


def to_messages(headers: Mapping[str, str], body: bytes) -> list[bytes]:
    """The messages of a request; names of headers are in lower case.

    Raises:
        ValueError: it claims to contain events, and contains none.
    """
    media = headers.get("content-type", "").partition(";")[0].strip().lower()
    if media == cloud_event_message.CONTENT_TYPE:
        return [_event(_json(body), body)]
    if media == BATCH_CONTENT_TYPE:
        events = _json(body)
        if not isinstance(events, list):
            raise ValueError("a batch of events is a JSON array")
        return [_event(each, None) for each in events]
    ce = {name[3:]: unquote(value) for name, value in headers.items() if name.startswith("ce-")}
    note = read_note(ce.pop(cloud_event_message.NOTE, None) or unquote(headers.get("isthmus-note", "")))
    if note is not None:
        try:
            return [to_message(record_of(note, None if note.get("mode") == "none" else body))]
        except (ValueError, TypeError, KeyError):
            pass  # another program has changed it
    if not ce:
        opened = envelope.unwrap(body)
        if opened is not None:
            return [opened]
    fields = {"content_type": headers.get("content-type", "") or None}
    message_id = ce.get("id") or headers.get("isthmus-message-id") or headers.get("webhook-id")
    if message_id:
        fields["message_id"] = message_id_of(unquote(message_id))
    properties = {f"cloudEvents:{name}": value for name, value in ce.items() if name != "datacontenttype"}
    properties |= {
        name.removeprefix("isthmus-property-"): unquote(value)
        for name, value in headers.items()
        if name.startswith("isthmus-property-")
    }
    set_fields = {name: value for name, value in fields.items() if value is not None}
    return [section.encode_message(body, properties=set_fields, application_properties=properties)]


def _json(body: bytes) -> object:
    try:
        return read_json(body)
    except RecursionError:
        raise ValueError("the JSON is nested too deep") from None


def _event(event: object, body: bytes | None) -> bytes:
    if not isinstance(event, dict) or not cloud_event_message.is_event(event):
        raise ValueError("not a CloudEvent: specversion, id, source and type are needed")
    return cloud_event_message.from_event(event, body)
