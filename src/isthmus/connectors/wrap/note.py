"""The parts of a message that its body lacks, as one line of ASCII beside it.

What it is: the headers, key and time of the record that the message would be in a log (`isthmus.connectors.kafka.mapping.mapping`), as JSON. What
it is not: the body.

Invariants:
    I1. `record_of(note_of(record), record.value)` is the record, except its partition.
    I2. For text that is not a note the result is None, never an error.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from isthmus.connectors.kafka.mapping.record import Record
from isthmus.connectors.wrap import record_text

__all__ = ["fields_of", "note_of", "read_note", "record_of"]


def fields_of(record: Record) -> dict[str, Any]:
    """The fields of a record except its value, as JSON."""
    fields: dict[str, Any] = {}
    if record.headers:
        fields["headers"] = [[name, record_text.write(value)] for name, value in record.headers]
    if record.key is not None:
        fields["key"] = record_text.write(record.key)
    if record.timestamp_ms is not None:
        fields["time"] = record.timestamp_ms
    return fields


def record_of(fields: Mapping[str, Any], value: bytes | None) -> Record:
    """The record.

    Raises:
        ValueError: a field is malformed.
        TypeError: as for ValueError.
    """
    headers = [(str(name), record_text.read(text)) for name, text in fields.get("headers", ())]
    moment = fields.get("time")
    is_moment = isinstance(moment, int) and not isinstance(moment, bool) and 0 <= moment < 1 << 63
    return Record(value, record_text.read(fields.get("key")), headers, moment if is_moment else None, None)


def note_of(record: Record, **more: Any) -> str:
    """The note of a record; `more` is added to it."""
    return json.dumps({**fields_of(record), **more}, separators=(",", ":"))


def read_note(text: object) -> dict[str, Any] | None:
    """The fields of a note; None where the text is not a note."""
    if not isinstance(text, str | bytes):
        return None
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return fields if isinstance(fields, dict) else None
