"""Columns in addition to the raw message, for DataFrame steps.

What it is: the columns that a step can request, read from a message, and their changes written to the message. They have
the names and types of the data source `servicebus`. What it is not: the raw columns (`isthmus.bridge.spark.row`).

Invariants:
    I1. A column with an unchanged value does not change the message.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from isthmus.amqp import codec, section
from isthmus.connectors.servicebus.message.property_struct import describe, property_of
from isthmus.replication.step.message.amqp_value import rule_text
from isthmus.replication.step.message.message import StepMessage
from isthmus.rules import MISSING, REMOVED

__all__ = ["READ_ONLY", "read", "write"]

_PROPERTIES = {
    "message_id": "message_id",
    "subject": "subject",
    "content_type": "content_type",
    "correlation_id": "correlation_id",
    "session_id": "group_id",
    "reply_to": "reply_to",
    "reply_to_session_id": "reply_to_group_id",
    "to": "to",
}
READ_ONLY = ("enqueued_time", "sequence_number", "delivery_count")
"""Columns that the broker sets: values that a step writes to them are ignored."""

_PARTITION_KEY = "x-opt-partition-key"
_MOST_INT = 0x7FFFFFFF


def read(message: StepMessage, name: str) -> Any:
    """A column's value; None if the message has none."""
    if name == "body":
        return message.body
    if name == "application_properties":
        return [(key, describe(value)) for key, value in message.application_properties.items()]
    if name in _PROPERTIES:
        return _plain(rule_text(message.properties.get(_PROPERTIES[name])))
    if name == "time_to_live_ms":
        return section.decode_header(message.raw, message.sections.header).ttl_ms
    if name == "delivery_count":
        return min(section.decode_header(message.raw, message.sections.header).delivery_count, _MOST_INT)
    system = {
        "partition_key": "PartitionKey",
        "enqueued_time": "EnqueuedTimeUtc",
        "sequence_number": "SequenceNumber",
    }
    return _plain(message.sys(system[name]))


def write(message: StepMessage, name: str, value: Any) -> None:
    """Writes a column's value to a message, if it has changed.

    Raises:
        ValueError: a message cannot have this value.
    """
    if name in READ_ONLY:
        return
    if name == "application_properties":
        _write_user(message, value)
        return
    if isinstance(value, str) and name == "body":
        value = value.encode()
    if value == read(message, name):
        return
    _WRITERS.get(name, _write_property(name))(message, value)


def _write_property(name: str) -> Callable[[StepMessage, Any], None]:
    return lambda message, value: message.set_property(_PROPERTIES[name], value)


def _write_body(message: StepMessage, value: Any) -> None:
    message.body = value or b""


_WRITERS: dict[str, Callable[[StepMessage, Any], None]] = {
    "body": _write_body,
    "partition_key": lambda message, value: message.set_annotation(_PARTITION_KEY, value),
    "time_to_live_ms": lambda message, value: message.set_time_to_live(value),
}


def _write_user(message: StepMessage, value: Any) -> None:
    before = message.application_properties
    pairs = value.items() if isinstance(value, dict) else value or ()
    after = {key: property_of(each) for key, each in pairs}
    for name in before.keys() - after.keys():
        message.set_application_property(name, REMOVED)
    for name, each in after.items():
        # Compared as encoded, since NaN is not equal to itself, and 0.0 equals -0.0.
        if name not in before or codec.encode(before[name]) != codec.encode(each):
            message.set_application_property(name, each)


def _plain(value: Any) -> Any:
    return None if value is MISSING else value
