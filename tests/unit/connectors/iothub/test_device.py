"""isthmus.connectors.iothub.device and .option."""

from __future__ import annotations

import json
from typing import Any

import pytest

from isthmus.amqp import section
from isthmus.amqp.types import Timestamp
from isthmus.connectors.iothub.device import ACK, Feedback, NoDeviceError, read_feedback, to_device
from isthmus.connectors.iothub.option import read_source, read_target
from isthmus.connectors.servicebus.message.message_rewriter import MessageRewriter
from isthmus.errors import ConfigError
from isthmus.transport.error import LinkRedirectError, error_from


def fields(message: bytes) -> tuple[dict[str, Any], dict[Any, Any]]:
    found = section.locate(message)
    return section.decode_properties(message, found.properties), section.decode_map(
        message, found.application_properties
    )


@pytest.mark.parametrize(
    ("message", "named_by", "device"),
    [
        (
            section.encode_message(b"x", properties={"to": "/devices/d1/messages/devicebound", "group_id": "s"}),
            "",
            "d1",
        ),
        (section.encode_message(b"x", properties={"to": "elsewhere", "group_id": "s"}), "", "s"),
        (section.encode_message(b"x", annotations={"x-opt-partition-key": "p"}), "", "p"),
        (section.encode_message(b"x", properties={"group_id": "s"}, application_properties={"id": b"d2"}), "id", "d2"),
    ],
)
def test_a_device_is_named_by(message: bytes, named_by: str, device: str) -> None:
    made = to_device(message, named_by, asks=False)
    properties, own = fields(made.payload)
    assert made.device == device
    assert properties["to"] == f"/devices/{device}/messages/devicebound"
    assert properties["message_id"] == made.message_id
    assert ACK not in own


@pytest.mark.parametrize("named_by", ["", "id"])
def test_a_message_without_a_device_is_refused(named_by: str) -> None:
    """I1."""
    with pytest.raises(NoDeviceError, match="names no device"):
        to_device(section.encode_message(b"x"), named_by, asks=False)


def test_what_the_publisher_wrote_stays() -> None:
    """I2."""
    message = section.encode_message(
        [1, "a"],
        properties={"message_id": 7, "group_id": "d 1/ä", "subject": "s"},
        application_properties={ACK: "none", "a": 1},
        value_body=True,
    )
    made = to_device(message, "", asks=True)
    properties, own = fields(made.payload)
    assert properties == {
        "message_id": "7",
        "group_id": "d 1/ä",
        "subject": "s",
        "to": "/devices/d%201%2F%C3%A4/messages/devicebound",
    }
    assert own == {"a": 1, ACK: "full"}
    body, before = section.locate(made.payload).body, section.locate(message).body
    assert made.payload[slice(*body)] == message[slice(*before)]


def test_feedback() -> None:
    reported = [{"originalMessageId": "m", "deviceId": "d", "statusCode": "Expired", "description": "late"}, 5, {}]
    assert read_feedback(section.encode_message(json.dumps(reported).encode())) == [
        Feedback("m", "d", "Expired", "late"),
        Feedback("", "", "", ""),
    ]
    assert read_feedback(section.encode_message(b"{")) == []


def test_options() -> None:
    source = read_source({"connection": "env:IOT", "checkpoints": "/tmp/c"})
    assert (source.topic, source.servicebus_options.connection) == ("events", "env:IOT")
    target = read_target({"connection": "env:IOT", "topic": "devicebound", "acknowledged_by": "device"})
    assert (target.acknowledged_by, target.device) == ("device", "")
    with pytest.raises(ConfigError, match="needs connection"):
        read_target({})
    with pytest.raises(ConfigError, match="dead_letter_topic"):
        read_source({"connection": "env:IOT", "checkpoints": "/tmp/c", "dead_letter_topic": "d"})


def test_a_redirect_says_where() -> None:
    info = {"hostname": "h", "network-host": "n", "port": 5671, "address": "amqps://n:5671/hub/Partitions/0"}
    error = error_from("amqp:link:redirect", "moved", info=info)
    assert isinstance(error, LinkRedirectError)
    assert (error.hostname, error.port, error.address) == ("n", 5671, info["address"])


def test_a_copy_without_a_message_id_has_the_same_one_each_time() -> None:
    """A device that remembers ids knows the second of two that were sent since the outcome of the first was unknown."""
    rewriter = MessageRewriter("ewr/orders", origin_namespace="here")

    def copied(sequence: int) -> str:
        original = section.encode_message(
            b"x",
            properties={"to": "/devices/d1/messages/devicebound"},
            annotations={"x-opt-sequence-number": sequence, "x-opt-enqueued-time": Timestamp(1000)},
        )
        copy = rewriter.copy(original, 2000)
        assert isinstance(copy, bytes)
        return to_device(copy, "", asks=True).message_id

    assert copied(1) == copied(1)
    assert copied(1) != copied(2)
