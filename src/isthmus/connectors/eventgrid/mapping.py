"""Messages as events of Event Grid, and back.

What it is: the mapping in both directions, pure. Specification: Microsoft Learn, "Azure Event Grid event schema" and "CloudEvents v1.0 schema with
Azure Event Grid".

Invariants:
    I1. The reverse mapping restores the message from which an event was made.
    I2. An event of another publisher becomes a message whose body is that event.
    I3. An event has the same name at each delivery, and different events have different names, with any ids.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any

from isthmus.amqp import section
from isthmus.connectors.http.mapping import to_messages as http_messages
from isthmus.connectors.wrap import cloud_event_message, envelope
from isthmus.connectors.wrap.arrival import message_id_of
from isthmus.message.json_number import read_json, write_json

__all__ = ["CONTENT_TYPES", "LIMIT_BYTES", "event_of", "message_of", "name_of", "time_ms_of", "to_messages"]

# Limits of one event, and of one request.
LIMIT_BYTES = 1 << 20
CONTENT_TYPES = {
    "cloudevents": "application/cloudevents-batch+json; charset=utf-8",
    "eventgrid": "application/json; charset=utf-8",
}
_TYPE = "isthmus.message"


def event_of(message: bytes, schema: str, source: str, now: datetime) -> bytes:
    """The event of a message, as JSON.

    Raises:
        CodecError: it is not a message.
    """
    if schema == "cloudevents":
        return cloud_event_message.to_json(message, source)
    attributes = cloud_event_message.attributes_of(message, source)
    event = {
        "id": attributes["id"],
        "subject": attributes.get("subject") or source or "isthmus",
        "eventType": _TYPE if attributes["type"] == cloud_event_message.TYPE else attributes["type"],
        "eventTime": attributes.get("time")
        or now.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "dataVersion": "1.0",
        "data": json.loads(envelope.wrap(message)),
    }
    return json.dumps(event, separators=(",", ":")).encode()


def message_of(event: object) -> bytes:
    """The message of an event.

    Raises:
        ValueError: it is not an event.
    """
    if not isinstance(event, dict):
        raise ValueError("an event is a JSON object")  # noqa: TRY004 - the sent value is wrong, not the caller
    if cloud_event_message.is_event(event):
        return cloud_event_message.from_event(event)
    if not isinstance(event.get("id"), str) or "eventType" not in event:
        raise ValueError("neither a CloudEvent nor an event of Event Grid")
    data = event.get("data")
    if isinstance(data, dict) and envelope.FIELD in data:
        opened = envelope.unwrap(json.dumps(data).encode())
        if opened is not None:
            return opened
    body = write_json(event).encode(errors="surrogatepass")
    return section.encode_message(
        body, properties={"message_id": message_id_of(event["id"]), "content_type": "application/json"}
    )


def to_messages(headers: Mapping[str, str], body: bytes) -> list[bytes]:
    """The messages of a request that Event Grid pushes; names of headers are in lower case.

    Raises:
        ValueError: it contains no events.
    """
    media = headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != "application/json" or any(name.startswith("ce-") for name in headers):
        return http_messages(headers, body)
    try:
        events = read_json(body)
        return [message_of(event) for event in (events if isinstance(events, list) else [events])]
    except RecursionError:
        raise ValueError("the JSON is nested too deep") from None


def name_of(event: Mapping[str, Any]) -> str:
    """The identity of an event. CloudEvents uses source and id for it; if a publisher gives two events the same, neither must be lost."""
    text = json.dumps(event, sort_keys=True, separators=(",", ":"))
    return f"{event.get('source', event.get('topic', ''))}/{event.get('id', '')}/{blake2b(text.encode(), digest_size=8).hexdigest()}"


def time_ms_of(event: Mapping[str, Any]) -> int:
    """The event's own time; 0 where it has none."""
    text = event.get("time") or event.get("eventTime")
    try:
        return max(0, round(datetime.fromisoformat(str(text)).timestamp() * 1000))
    except (ValueError, OverflowError):
        return 0
