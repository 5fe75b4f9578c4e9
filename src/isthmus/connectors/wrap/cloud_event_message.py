"""Messages as CloudEvents, and back.

What it is: the mapping in both directions, pure. Specification: CloudEvents 1.0.2, "JSON Event Format" and "AMQP Protocol Binding".
docs/explanation/wrapped-messages.md.

The extension `isthmusnote` contains the parts of the message that the event lacks (`note`), so that the reverse mapping restores the same message.
Attributes come from the message's own `cloudEvents:` properties where it has them (binary mode), or from its body where that is an event
(structured mode). Else: id is the MessageId, source is the route's setting, type is `isthmus.message`, subject, time and
datacontenttype are the message's subject, creation-time and content type.

Invariants:
    I1. `from_json(to_json(message))` is equivalent to the message, with an identical body.
    I2. An event of another sender becomes a message whose body is exactly that event (structured mode).
    I3. For input that is not an event the result is None, never an error.
    I4. A body that is nested too deeply to be written within an event is written as bytes.
"""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any

from isthmus.amqp import section
from isthmus.connectors.kafka.mapping.mapping import to_message, to_record
from isthmus.connectors.wrap.arrival import message_id_of
from isthmus.connectors.wrap.note import note_of, read_note, record_of
from isthmus.message.json_number import write_json

__all__ = ["CONTENT_TYPE", "NOTE", "attributes_of", "from_event", "from_json", "is_event", "to_event", "to_json"]

CONTENT_TYPE = "application/cloudevents+json"
NOTE = "isthmusnote"
TYPE = "isthmus.message"
_PREFIXES = ("cloudEvents:", "cloudEvents_")
_REQUIRED = ("specversion", "id", "source", "type")
# The styles of JSON that are tried: compact, and the default of most programs.
_STYLES = ((",", ":"), (", ", ": "))


def to_json(message: bytes, source: str) -> bytes:
    """The event of a message, in structured mode.

    Args:
        message: encoded.
        source: the event's source where the message names none.

    Raises:
        CodecError: it is not a message.
    """
    try:
        return json.dumps(to_event(message, source), separators=(",", ":")).encode()
    except RecursionError:
        return json.dumps(to_event(message, source, is_deep=True), separators=(",", ":")).encode()


def to_event(message: bytes, source: str, *, is_deep: bool = False) -> dict[str, Any]:
    """The same, as an object; `is_deep`: the body is not parsed (I4)."""
    record = to_record(message)
    attributes = attributes_of(message, source)
    if is_deep and record.value is not None:
        return {**attributes, NOTE: note_of(record), **_bytes(record.value)}
    if attributes.get("datacontenttype", "").partition(";")[0].strip() == CONTENT_TYPE:
        event = _object(record.value)
        if event is not None and is_event(event):
            style = _style(event, record.value or b"")
            more = {"style": style} if style is not None else {"body": base64.b64encode(record.value or b"").decode()}
            return {**event, NOTE: note_of(record, mode="structured", **more)}
    data, more = _data(record.value, attributes)
    return {**attributes, NOTE: note_of(record, **more), **data}


def attributes_of(message: bytes, source: str) -> dict[str, str]:
    """The attributes of the event of a message, without its data."""
    found = section.locate(message)
    fields = section.decode_properties(message, found.properties)
    properties = section.decode_map(message, found.application_properties)
    own = {
        name.removeprefix(prefix): value if isinstance(value, str) else str(value)
        for name, value in properties.items()
        for prefix in _PREFIXES
        if isinstance(name, str) and name.startswith(prefix) and value is not None
    }
    message_id = fields.get("message_id")
    made = {
        "specversion": "1.0",
        "id": str(message_id) if message_id is not None else blake2b(message, digest_size=16).hexdigest(),
        "source": source or "isthmus",
        "type": TYPE,
    }
    created_ms = fields.get("creation_time")
    if isinstance(fields.get("subject"), str) and fields["subject"]:
        made["subject"] = fields["subject"]
    if isinstance(created_ms, int) and 0 <= created_ms < 1 << 47:
        made["time"] = (
            datetime.fromtimestamp(created_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        )
    if fields.get("content_type"):
        made["datacontenttype"] = str(fields["content_type"])
    return {**made, **own}


def from_json(body: bytes) -> bytes | None:
    """The message of an event in structured mode that this module made; None for any other input."""
    if not body[:64].lstrip().startswith(b"{"):
        return None
    event = _object(body)
    return None if event is None or NOTE not in event else _opened(event)


def from_event(event: dict[str, Any], body: bytes | None = None) -> bytes:
    """The message of any event; `body` is the event as it was received, where it is available."""
    made = _opened(event) if NOTE in event else None
    if made is not None:
        return made
    text = write_json(event).encode() if body is None else body
    return section.encode_message(
        text, properties={"message_id": message_id_of(str(event["id"])), "content_type": CONTENT_TYPE}
    )


def is_event(event: object) -> bool:
    """Whether this is a CloudEvent."""
    return isinstance(event, dict) and all(isinstance(event.get(name), str) and event[name] for name in _REQUIRED)


def _opened(event: dict[str, Any]) -> bytes | None:
    note = read_note(event.get(NOTE))
    if note is None:
        return None
    try:
        return to_message(record_of(note, _value(event, note)))
    except Exception:  # noqa: BLE001 - I3: another program may have changed the note
        return None


def _value(event: dict[str, Any], note: dict[str, Any]) -> bytes | None:
    if note.get("mode") == "structured":
        if "body" in note:
            return base64.b64decode(note["body"], validate=True)
        return _dumped({name: value for name, value in event.items() if name != NOTE}, note["style"])
    if note.get("mode") == "none":
        return None
    if "data_base64" in event:
        return base64.b64decode(event["data_base64"], validate=True)
    if "style" in note:
        return _dumped(event["data"], note["style"])
    return str(event.get("data", "")).encode()


def _data(value: bytes | None, attributes: dict[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """How an event contains a body, and the note about it."""
    if value is None:
        return {}, {"mode": "none"}
    media = attributes.get("datacontenttype", "").partition(";")[0].strip().lower()
    if media.endswith(("/json", "+json")):
        try:
            found = json.loads(value, parse_constant=_refuse_constant)
            style = _style(found, value)
        except (ValueError, RecursionError):
            style = None
        if style is not None:
            return {"data": found}, {"style": style}
    elif not media or media.startswith("text/"):
        try:
            text = value.decode()
        except UnicodeDecodeError:
            pass
        else:
            attributes.setdefault("datacontenttype", "text/plain; charset=utf-8")
            return {"data": text}, {}
    return _bytes(value), {}


def _bytes(value: bytes) -> dict[str, Any]:
    return {"data_base64": base64.b64encode(value).decode()}


def _style(value: Any, raw: bytes) -> int | None:
    """The style in which JSON was written; None: another style."""
    return next((style for style in range(len(_STYLES)) if _dumped(value, style) == raw), None)


def _dumped(value: Any, style: int) -> bytes:
    return json.dumps(value, separators=_STYLES[style], ensure_ascii=False).encode(errors="surrogatepass")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _object(raw: bytes | None) -> dict[str, Any] | None:
    try:
        found = json.loads(raw or b"", parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
