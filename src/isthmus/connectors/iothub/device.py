"""Copies as cloud-to-device messages, and their outcomes in an IoT hub's feedback; pure.

What it is: the address of a device, the message to it, and the parsing of feedback. What it is not: a link (`target`).
Specification: Microsoft Learn, "Send cloud-to-device messages from an IoT hub" and "Communicate with your IoT hub by using the AMQP protocol".

Invariants:
    I1. A message without a device is refused individually.
    I2. All parts by the publisher are kept, except To, MessageId where there is none, and `iothub-ack`.
"""

from __future__ import annotations

import json
import uuid
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from isthmus.amqp import codec, section
from isthmus.message import name as names
from isthmus.message.duplicate_key import duplicate_key, made_message_id

__all__ = ["ACK", "DEVICE_BOUND", "FEEDBACK", "Feedback", "NoDeviceError", "ToDevice", "read_feedback", "to_device"]

DEVICE_BOUND = "/messages/devicebound"
FEEDBACK = "/messages/serviceBound/feedback"
ACK = "iothub-ack"
_SUFFIX = "/messages/devicebound"


class NoDeviceError(ValueError):
    """A message names no device."""


class ToDevice(NamedTuple):
    """A message to a device; feedback identifies it by `identity`."""

    payload: bytes
    device: str
    message_id: str

    @property
    def identity(self) -> tuple[str, str]:
        """MessageId and device."""
        return self.message_id, unquote(self.device)


class Feedback(NamedTuple):
    """The outcome of a message; `status` is `Success`, or why it was not completed."""

    message_id: str
    device: str
    status: str
    description: str

    @property
    def identity(self) -> tuple[str, str]:
        """MessageId and device: the device's id in an address may be percent-encoded, as by some SDKs, or not."""
        return self.message_id, unquote(self.device)


def to_device(message: bytes, device_property: str, *, asks: bool) -> ToDevice:
    """The message to a device.

    Args:
        message: a copy, encoded.
        device_property: the application property that names the device; empty: SessionId, then PartitionKey.
        asks: whether feedback is requested, for any outcome of the message.

    Raises:
        NoDeviceError: no device is named.
        CodecError: it is not a message.
    """
    found = section.locate(message)
    properties = section.decode_properties(message, found.properties)
    own = section.decode_map(message, found.application_properties)
    to = str(properties.get("to") or "")
    device = _device_of(to)
    if not device:
        annotations = section.decode_map(message, found.message_annotations)
        value = own.get(device_property) if device_property else properties.get("group_id")
        if not device_property and value is None:
            value = annotations.get(names.PARTITION_KEY)
        device = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value or "")
    if not device:
        what = f"application property {device_property}" if device_property else "SessionId or PartitionKey"
        raise NoDeviceError(f"the message names no device: it has neither To /devices/ID{_SUFFIX} nor {what}")
    changes: dict[str, Any] = {}
    if not _device_of(to):
        changes["to"] = f"/devices/{quote(device, safe='')}{_SUFFIX}"
    message_id = properties.get("message_id")
    if message_id is None:
        # The same each time that the message is sent, if it has provenance.
        key = duplicate_key(message, *found.application_properties)
        message_id = changes["message_id"] = made_message_id(key) if key else uuid.uuid4().hex
    elif not isinstance(message_id, str):
        message_id = changes["message_id"] = str(message_id)
    pairs = [
        message[start:end]
        for start, _, end in section.map_items(message, found.application_properties)
        if not (asks and codec.decode(message, start)[0] == ACK)
    ]
    if asks:
        pairs.append(codec.encode(ACK) + codec.encode("full"))
    payload = b"".join(
        (
            message[slice(*found.header)],
            section.replace_properties(message, found.properties, changes)
            if changes
            else message[slice(*found.properties)],
            _map_section(pairs),
            message[slice(*found.body)],
        )
    )
    return ToDevice(payload, device, message_id)


def read_feedback(message: bytes) -> list[Feedback]:
    """The records of a feedback message; unreadable ones are omitted.

    Raises:
        CodecError: it is not a message.
    """
    found = section.locate(message)
    try:
        value = json.loads(section.contents(message, *found.body))
    except ValueError:
        return []
    return [
        Feedback(
            str(each.get("originalMessageId") or ""),
            str(each.get("deviceId") or ""),
            str(each.get("statusCode") or each.get("status") or ""),
            str(each.get("description") or ""),
        )
        for each in (value if isinstance(value, list) else [])
        if isinstance(each, dict)
    ]


def _device_of(to: str) -> str:
    parts = to.strip("/").split("/")
    is_address = len(parts) >= 4 and parts[0].lower() == "devices" and parts[-1].lower() == "devicebound"
    return parts[1] if is_address else ""


def _map_section(pairs: list[bytes]) -> bytes:
    if not pairs:
        return b""
    body = b"".join(pairs)
    return b"\0St\xd1%b%b%b" % ((len(body) + 4).to_bytes(4, "big"), (2 * len(pairs)).to_bytes(4, "big"), body)
