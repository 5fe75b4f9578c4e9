"""isthmus.connectors.wrap: messages in systems without application properties, and back."""

from __future__ import annotations

import json

import pytest

from isthmus.amqp import section
from isthmus.amqp.types import Timestamp
from isthmus.connectors.eventgrid.mapping import event_of, message_of
from isthmus.connectors.http.mapping import HeadersTooLargeError, to_messages, to_request
from isthmus.connectors.queuestorage.mapping import LIMIT_BYTES, TextError, poison_text, to_message, to_text
from isthmus.connectors.wrap import cloud_event_message, envelope
from isthmus.connectors.wrap.arrival import annotated, number_of, with_properties
from isthmus.message.name import SEQUENCE_NUMBER

BODIES = [b"", b"text", b"\xff\0", b'{"a":1,"b":[2]}', b'{"a": 1}', b'{ "odd" :1}', "Grüße".encode()]
MESSAGES = [
    section.encode_message(
        body,
        header=section.Header(ttl_ms=5000, priority=7),
        properties={
            "message_id": "a/1",
            "content_type": media,
            "subject": "s",
            "creation_time": Timestamp(1_700_000_000_123),
        },
        application_properties={"repl-origin": "ewr/flights", "n": 1, "f": 1.5, "t": True, "b": b"\xfe", "ü %": "ä\n"},
        annotations={"x-opt-partition-key": "k", "x-own": 3},
    )
    for body in BODIES
    for media in ("application/json", "text/plain")
]


def said(message: bytes) -> object:
    """The contents of a message, without a broker's annotations."""
    found = section.locate(message)
    annotations = section.decode_map(message, found.message_annotations)
    for name in ("x-opt-sequence-number", "x-opt-enqueued-time"):
        annotations.pop(name, None)
    header = section.decode_header(message, found.header)
    return (
        header.ttl_ms,
        header.priority,
        annotations,
        section.decode_properties(message, found.properties),
        section.decode_map(message, found.application_properties),
        message[slice(*found.body)],
    )


@pytest.mark.parametrize("message", MESSAGES)
def test_i1_the_reverse_conversion_makes_the_same_message(message: bytes) -> None:
    opened = envelope.unwrap(envelope.wrap(message))
    assert opened is not None
    assert said(opened) == said(message)
    event = cloud_event_message.to_json(message, "ewr/flights")
    assert cloud_event_message.is_event(json.loads(event))
    back = cloud_event_message.from_json(event)
    assert back is not None
    assert said(back) == said(message)
    assert said(message_of(json.loads(event))) == said(message)
    for mode in ("structured", "binary", "body"):
        request = to_request(message, mode, "ewr/flights")
        assert all(value.isascii() and value.isprintable() for value in request.headers.values())
        (again,) = to_messages(request.headers, request.body)
        assert said(again) == said(message), mode


def test_an_event_of_event_grid_and_back() -> None:
    from datetime import UTC, datetime

    event = json.loads(event_of(MESSAGES[0], "eventgrid", "ewr/flights", datetime.now(UTC)))
    assert (event["id"], event["subject"], event["eventTime"]) == ("a/1", "s", "2023-11-14T22:13:20.123Z")
    assert said(message_of(event)) == said(MESSAGES[0])


def test_i2_an_event_of_somebody_else_is_kept_to_the_byte_and_comes_out_again() -> None:
    raw = b'{"specversion" : "1.0", "id":"7", "source":"/x", "type":"t", "data": {"a":  1}}'
    (message,) = to_messages({"content-type": "application/cloudevents+json"}, raw)
    assert section.contents(message, section.locate(message).body[0], len(message)) == raw
    sent = cloud_event_message.to_json(message, "")
    assert json.loads(sent)["data"] == {"a": 1}
    back = cloud_event_message.from_json(sent)
    assert back is not None
    assert said(back) == said(message)


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"[]", b'{"isthmus":2}', b'{"isthmus":1}', b'{"isthmus":1,"body":5}', b"\xff"]
)
def test_i3_what_is_no_envelope_is_no_error(raw: bytes) -> None:
    assert envelope.unwrap(raw) is None
    assert cloud_event_message.from_json(raw) is None


def test_what_comes_again_has_the_same_number_and_id() -> None:
    bare = section.encode_message(b"x")
    first = annotated(bare, name="account/q/1", enqueued_ms=5, message_id="1")
    assert first == annotated(bare, name="account/q/1", enqueued_ms=5, message_id="1")
    found = section.locate(first)
    assert section.decode_map(first, found.message_annotations)[SEQUENCE_NUMBER] == number_of("account/q/1") > 0
    assert section.decode_properties(first, found.properties)["message_id"] == "1"
    assert b"Reason" in with_properties(first, {"Reason": "x"})


@pytest.mark.parametrize("form", ["envelope", "cloudevents"])
@pytest.mark.parametrize("encoding", ["base64", "text"])
def test_a_queue_gives_back_what_was_put(form: str, encoding: str) -> None:
    for message in MESSAGES:
        text = to_text(message, form, encoding, "ewr/flights")
        back = to_message(text, encoding, name="n", message_id="m", enqueued_ms=1000, expires_ms=6000)
        assert said(back)[:1] == (5000,)  # type: ignore[index]
        assert said(back)[1:] == said(message)[1:]  # type: ignore[index]


def test_what_a_queue_cannot_hold_is_refused() -> None:
    with pytest.raises(TextError, match="UTF-8"):
        to_text(section.encode_message(b"\xff"), "body", "text")
    with pytest.raises(TextError, match=r"U\+000D"):
        to_text(section.encode_message(b"a\r\n"), "body", "text")
    with pytest.raises(TextError, match="base64"):
        to_message("no base64!", "base64", name="n", message_id="m", enqueued_ms=0, expires_ms=0)


def test_properties_that_no_headers_hold_are_refused() -> None:
    message = section.encode_message(b"", application_properties={"a": "x" * 9000})
    with pytest.raises(HeadersTooLargeError, match="structured"):
        to_request(message, "binary", "")


@pytest.mark.parametrize(
    "note",
    [
        {"style": 99},
        {"style": -3},
        {"style": {}},
        {"headers": 5},
        {"headers": [["a"]]},
        {"headers": [[None, {"base64": "?"}]]},
        {"key": {}},
        {"time": 1 << 80},
        {"mode": "structured"},
        {"mode": "structured", "body": 7},
    ],
)
def test_i3_what_another_program_made_of_a_note_is_never_an_error(note: dict[str, object]) -> None:
    event = {"specversion": "1.0", "id": "1", "source": "s", "type": "t", "data": {"a": 1}}
    body = json.dumps({**event, "isthmusnote": json.dumps(note)}).encode()
    message = to_message(
        body.decode(), "text", name="a/q/1", message_id="1", enqueued_ms=1_700_000_000_000, expires_ms=0
    )
    assert section.locate(message).body
    cloud_event_message.from_event(json.loads(body))
    envelope.unwrap(json.dumps({"isthmus": 1, "body": "x", **note}).encode())


@pytest.mark.parametrize("encoding", ["base64", "text"])
@pytest.mark.parametrize("size", [10, 36_000, 48_000, 64_000])
def test_i3_what_was_in_a_queue_can_be_put_into_its_poison_queue(encoding: str, size: int) -> None:
    """Otherwise the source would be lost for it again and again. Binary bodies grow twice in an envelope."""
    body = bytes(range(1, 256)) * (size // 255 + 1) if encoding == "base64" else b"x" * size
    body = body[: size * 3 // 4] if encoding == "base64" else body
    text = to_text(section.encode_message(body), "body", encoding)
    assert len(text) <= LIMIT_BYTES
    message = to_message(text, encoding, name="a/q/1", message_id="1", enqueued_ms=1, expires_ms=0)
    poisoned = poison_text(message, {"DeadLetterReason": "Bad", "DeadLetterErrorDescription": "y" * 300}, encoding)
    assert len(poisoned.encode()) <= LIMIT_BYTES
    again = to_message(poisoned, encoding, name="a/q/2", message_id="2", enqueued_ms=1, expires_ms=0)
    assert said(again)[-1] == said(message)[-1]


def test_i3_a_text_that_cannot_be_read_is_put_into_the_poison_queue_as_it_was() -> None:
    text = "no base64! " * 5_900
    message = section.encode_message(text.encode(), properties={"message_id": "1"})
    assert poison_text(message, {"DeadLetterReason": "Unreadable"}, "base64") == text


@pytest.mark.parametrize("media", ["application/json", cloud_event_message.CONTENT_TYPE])
def test_i4_a_body_is_never_nested_too_deep_for_an_event(media: str) -> None:
    """What can just be read cannot be written within more of it: a target would try again and again."""
    depths = range(900, 1000)
    for depth in depths:
        inner = b"[" * depth + b"]" * depth
        body = b'{"specversion":"1.0","id":"1","source":"s","type":"t","d":%b}' % inner
        message = section.encode_message(body, properties={"message_id": "1", "content_type": media})
        event = cloud_event_message.to_json(message, "ewr/flights")
        if b"data_base64" in event:
            opened = cloud_event_message.from_json(event)
            assert opened is not None
            assert said(opened) == said(message)
    assert b"data_base64" in event
