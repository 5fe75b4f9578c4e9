"""Our own envelope: a message as one JSON object, for systems that store only a body.

What it is: the wrapping of an encoded AMQP message, and its opening, pure. docs/explanation/wrapped-messages.md.

    {"isthmus": 1, "body": "text", "headers": [["name", "value"], …], "key": "…", "time": 1700000000000}

The fields are those of the record that the message would be in a log (`isthmus.connectors.kafka.mapping.mapping`): properties of the sender and of
provenance as headers, SessionId or PartitionKey as key, creation-time as time. Bytes that are not UTF-8 text are written as {"base64": "…"}.

Invariants:
    I1. `unwrap(wrap(message))` is equivalent to the message (`isthmus.connectors.kafka.mapping.mapping`, I2).
    I2. The text is ASCII, without a control character.
    I3. For input that is not an envelope the result is None, never an error.
"""

from __future__ import annotations

import json

from isthmus.connectors.kafka.mapping.mapping import to_message, to_record
from isthmus.connectors.wrap import record_text
from isthmus.connectors.wrap.note import fields_of, record_of

__all__ = ["FIELD", "unwrap", "wrap"]

FIELD = "isthmus"
_VERSION = 1
_FIRST = b"{"


def wrap(message: bytes) -> bytes:
    """The envelope of a message.

    Raises:
        CodecError: it is not a message.
    """
    record = to_record(message)
    fields = {FIELD: _VERSION, "body": record_text.write(record.value), **fields_of(record)}
    return json.dumps(fields, separators=(",", ":")).encode()


def unwrap(text: bytes) -> bytes | None:
    """The message of an envelope; None where the text is not an envelope."""
    if not text[:64].lstrip().startswith(_FIRST):
        return None
    try:
        fields = json.loads(text)
        if not isinstance(fields, dict) or fields.get(FIELD) != _VERSION:
            return None
        return to_message(record_of(fields, record_text.read(fields["body"])))
    except Exception:  # noqa: BLE001 - I3: another program may have changed it
        return None
