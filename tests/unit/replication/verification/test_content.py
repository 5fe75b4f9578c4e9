"""The digest of a message's content is that of its copy, and of no other message."""

from __future__ import annotations

from typing import Any

import pytest

from isthmus.amqp import section
from isthmus.amqp.types import Int, Long, Symbol, Timestamp
from isthmus.connectors.servicebus.message.message_rewriter import MessageRewriter
from isthmus.replication.verification.content import content_digest

ANNOTATIONS = {Symbol("x-opt-sequence-number"): Long(7), Symbol("x-opt-enqueued-time"): Timestamp(1000)}


def message(body: bytes = b"body", **more: Any) -> bytes:
    return section.encode_message(
        body,
        annotations=ANNOTATIONS | more.get("annotations", {}),
        properties=more.get("properties", {"message_id": "m", "subject": "s"}),
        application_properties=more.get("own", {"a": Int(1), "b": "text"}),
    )


@pytest.mark.parametrize(
    "original",
    [
        message(),
        message(properties={}),
        message(own={}),
        message(own={"replication": Int(0), "a": Int(1)}),
        message(properties={"message_id": 7, "content_type": "text/plain", "group_id": "g"}),
        message(annotations={Symbol("x-opt-partition-key"): "p", Symbol("own"): "kept"}),
        section.encode_message({"a": 1}, annotations=ANNOTATIONS, value_body=True),
    ],
)
def test_a_copy_has_the_content_of_its_original(original: bytes) -> None:
    copy = MessageRewriter("ewr/flights", "jfk").copy(original, 2000)
    assert isinstance(copy, bytes)
    assert content_digest(copy, ("replication",), "ewr/flights/7") == content_digest(original, ("replication",))


@pytest.mark.parametrize(
    "other",
    [
        message(b"bodY"),
        message(b""),
        message(properties={"message_id": "m", "subject": "S"}),
        message(properties={"subject": "s"}),
        message(own={"a": Int(2), "b": "text"}),
        message(own={"a": Long(1), "b": "text"}),
        message(own={"a": Int(1)}),
        message(own={"a": Int(1), "b": "text", "replication": Int(1)}),
        message(annotations={Symbol("x-opt-partition-key"): "p"}),
    ],
)
def test_i1_another_message_has_another_content(other: bytes) -> None:
    assert content_digest(other) != content_digest(message())


def test_i1_neither_the_order_of_properties_nor_their_encoding_counts() -> None:
    turned = message(own={"b": "text", "a": Int(1), "RuleName": "r", "repl-origin": "x/y", "Mark": True})
    wide = turned.replace(b"\xa1\x04text", b"\xb1\x00\x00\x00\x04text")
    start = wide.index(b"\0St\xc1") + 4
    wide = wide[:start] + bytes((wide[start] + 3,)) + wide[start + 1 :]
    assert content_digest(turned, ("mark",)) == content_digest(wide, ("mark",)) == content_digest(message())


def test_i2_what_cannot_be_decoded_enters_as_bytes() -> None:
    broken = message().replace(b"text", b"\xff\xff\xff\xff")
    assert content_digest(broken) == content_digest(broken)
    assert content_digest(broken) != content_digest(broken.replace(b"\xff\xff", b"\xff\xfe"))


def test_the_senders_id_counts_where_a_copy_was_given_another() -> None:
    made = "isthmus-" + "0f" * 16
    given = message(
        properties={"message_id": made, "subject": "s"}, own={"a": Int(1), "b": "text", "repl-message-id": "m"}
    )
    assert content_digest(given, (), "ewr/flights/7") == content_digest(message())
    nameless = message(properties={"message_id": made, "subject": "s"})
    assert content_digest(nameless, (), "ewr/flights/7") == content_digest(message(properties={"subject": "s"}))


@pytest.mark.parametrize("mark", ["", "isthmus-flights-aaaaaa", "replication"])
def test_a_copy_with_the_mark_that_the_task_had_before_has_the_content_of_its_original(mark: str) -> None:
    copy = message(own={"a": Int(1), "b": "text", "isthmus-Flights-0f1e2d": "m"})
    assert content_digest(copy, (mark,), "ewr/flights/7") == content_digest(message(), (mark,))
    other = message(own={"a": Int(1), "b": "text", "isthmus-flights-of-1545": "m"})
    assert content_digest(other, (mark,), "ewr/flights/7") != content_digest(message(), (mark,))
