"""The properties of a content of AMQP 0-9-1, and a message in RabbitMQ's form.

What it is: the content header's property list, parsed and encoded. What it is not: their meaning in AMQP 1.0 (`mapping`).
Specification: AMQP 0-9-1, 4.2.6.1 and the class `basic`.

Invariants:
    I1. `write(read(raw)) == raw`, except for an empty table of headers, which is omitted.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from isthmus.connectors.rabbitmq.protocol import table
from isthmus.connectors.rabbitmq.protocol.table import Field, TableError

__all__ = ["NO_PROPERTIES", "Properties", "Record", "read", "write"]

NO_PROPERTIES = b"\0\0"
_U16 = struct.Struct(">H")


class Record(NamedTuple):
    """A message.

    Attributes:
        body: its bytes.
        properties: flags and fields, encoded.
        exchange: the exchange to which it was published.
        routing_key: the routing key with which it was published.
    """

    body: bytes
    properties: bytes = NO_PROPERTIES
    exchange: str = ""
    routing_key: str = ""


class Properties(NamedTuple):
    """The fields of `basic`; None where one is not set. Short strings are bytes, because they need not be UTF-8."""

    content_type: bytes | None = None
    content_encoding: bytes | None = None
    headers: Sequence[Field] = ()
    delivery_mode: int | None = None
    priority: int | None = None
    correlation_id: bytes | None = None
    reply_to: bytes | None = None
    expiration: bytes | None = None
    message_id: bytes | None = None
    timestamp: int | None = None
    type: bytes | None = None
    user_id: bytes | None = None
    app_id: bytes | None = None
    cluster_id: bytes | None = None


def read(raw: bytes) -> Properties:
    """Parses an encoded list.

    Raises:
        TableError: it is malformed.
    """
    try:
        flags = int(_U16.unpack_from(raw)[0])
        at = 2
        values: list[object] = []
        for index, name in enumerate(Properties._fields):
            if not flags & (0x8000 >> index):
                values.append(() if name == "headers" else None)
                continue
            if name == "headers":
                fields, at = table.decode(raw, at)
                values.append(tuple(fields))
            elif name in ("delivery_mode", "priority"):
                values.append(raw[at])
                at += 1
            elif name == "timestamp":
                values.append(int.from_bytes(raw[at : at + 8], "big"))
                at += 8
            else:
                stop = at + 1 + raw[at]
                values.append(raw[at + 1 : stop])
                at = stop
    except (IndexError, struct.error):
        raise TableError("the properties are cut off") from None
    if at != len(raw) or flags & 3:
        raise TableError("the properties are malformed")
    return Properties(*values)  # type: ignore[arg-type]


def write(properties: Properties) -> bytes:
    """Encodes a list.

    Raises:
        TableError: a short string, or a header's name, has more than 255 bytes.
    """
    flags = 0
    parts = []
    for index, (name, value) in enumerate(zip(Properties._fields, properties, strict=True)):
        if value is None or value == ():
            continue
        flags |= 0x8000 >> index
        if name == "headers":
            parts.append(table.encode(value))  # type: ignore[arg-type]
        elif name in ("delivery_mode", "priority"):
            parts.append(bytes((value,)))  # type: ignore[arg-type]
        elif name == "timestamp":
            parts.append(struct.pack(">Q", value))
        else:
            text = bytes(value)  # type: ignore[arg-type]
            if len(text) > 255:
                raise TableError(f"{name} has {len(text)} bytes; AMQP 0-9-1 allows 255")
            parts.append(b"%c%b" % (len(text), text))
    return _U16.pack(flags) + b"".join(parts)
