"""A listener's answers to requests."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import pytest

from isthmus.amqp import section
from isthmus.connectors.eventgrid.mapping import to_messages as grid_messages
from isthmus.connectors.http.mapping import to_messages
from isthmus.connectors.http.signature import signed
from isthmus.connectors.listen.door import Door, Reply
from isthmus.connectors.listen.option import ListenOptions

SECRET = "hunter2-of-the-hook"
OPTIONS = ListenOptions(
    host="127.0.0.1",
    port=0,
    entity="hook",
    spool=Path("spool"),
    auth="none",
    secret="",
    signature="standard",
    certificate_file="",
    key_file="",
    max_body_bytes=1 << 20,
    spool_bytes=1 << 30,
)
EVENT = {"specversion": "1.0", "id": "1", "source": "/x", "type": "t"}


class Store:
    """Keeps what it is given; done when the test says so."""

    def __init__(self, *, is_full: bool = False) -> None:
        self.is_full = is_full
        self.kept: list[Sequence[bytes]] = []

    def put(self, messages: Sequence[bytes]) -> Future[None]:
        self.kept.append(messages)
        return Future()


def door(store: Store, *, handshakes: bool = False, **changes: str) -> Door:
    return Door(
        replace(OPTIONS, **changes),
        secret=lambda: SECRET,
        read=grid_messages if handshakes else to_messages,
        store=store,
        wall=lambda: 1000.0,
        handshakes=handshakes,
    )


def test_i1_nothing_is_answered_before_it_is_kept() -> None:
    store = Store()
    reply = door(store).post({}, b"x")
    assert isinstance(reply, Future)
    assert not reply.done()
    assert len(store.kept) == 1


@pytest.mark.parametrize(
    ("auth", "signature", "headers"),
    [
        ("bearer", "standard", {}),
        ("bearer", "standard", {"authorization": "Bearer \udcff"}),
        ("hmac", "standard", signed("standard", "another", "1", b"x", 1000)),
        ("hmac", "standard", signed("standard", SECRET, "1", b"x", 1301)),
        ("hmac", "standard", {**signed("standard", SECRET, "1", b"x", 1000), "webhook-id": "\udcff"}),
        ("hmac", "standard", {**signed("standard", SECRET, "1", b"x", 1000), "webhook-signature": "v1,\udcff"}),
        ("hmac", "sha256", {"x-hub-signature-256": "sha256=\udcff"}),
    ],
)
def test_i2_i3_without_a_proof_nothing_is_read(auth: str, signature: str, headers: dict[str, str]) -> None:
    store = Store()
    reply = door(store, auth=auth, signature=signature, secret="env:X").post(headers, b"x")
    assert isinstance(reply, Reply)
    assert reply.status == 401
    assert SECRET not in reply.body
    assert not store.kept


def test_of_a_batch_with_one_bad_event_nothing_is_taken() -> None:
    store = Store()
    headers = {"content-type": "application/cloudevents-batch+json"}
    reply = door(store).post(headers, json.dumps([EVENT, {"id": "2"}]).encode())
    assert isinstance(reply, Reply)
    assert reply.status == 400
    assert not store.kept
    assert isinstance(door(store).post(headers, json.dumps([EVENT, {**EVENT, "id": "2"}]).encode()), Future)
    assert len(store.kept[0]) == 2


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({"ce-id": "\udcff", "ce-type": "t"}, b"x"),
        ({"content-type": "application/cloudevents+json"}, json.dumps({**EVENT, "id": "\ud800"}).encode()),
        ({"content-type": "application/cloudevents+json"}, b"[" * 100_000),
        ({"content-type": "application/cloudevents+json"}, b"{}"),
    ],
)
@pytest.mark.parametrize("handshakes", [False, True])
def test_what_cannot_be_read_is_reported_as_that(headers: dict[str, str], body: bytes, handshakes: bool) -> None:
    """A fault of the listener's would be sent again, and again."""
    store = Store()
    reply = door(store, handshakes=handshakes).post(headers, body)
    assert isinstance(reply, Reply)
    assert reply.status == 400
    assert reply.body.encode()
    assert not store.kept


def test_a_full_spool_is_reported() -> None:
    reply = door(Store(is_full=True)).post({}, b"x")
    assert isinstance(reply, Reply)
    assert (reply.status, reply.headers) == (503, {"Retry-After": "10"})


def test_the_confirmation_of_a_subscription_takes_nothing_in() -> None:
    """An event that comes with it would have needed a proof."""
    store = Store()
    headers = {"aeg-event-type": "SubscriptionValidation", "content-type": "application/json"}
    body = json.dumps([{"data": {"validationCode": "7"}}, EVENT]).encode()
    reply = door(store, handshakes=True, auth="bearer", secret="env:X").post(headers, body)
    assert isinstance(reply, Reply)
    assert (reply.status, reply.body) == (200, '{"validationResponse": "7"}')
    assert not store.kept
    for wrong in (b"", b"[]", b"[" * 100_000, b'[{"data": 5}]'):
        reply = door(store, handshakes=True).post(headers, wrong)
        assert isinstance(reply, Reply)
        assert reply.status == 400
    reply = door(store, auth="bearer", secret="env:X").post(
        headers, body
    )  # no subscription of Event Grid's is expected
    assert isinstance(reply, Reply)
    assert reply.status == 401


GZIPPED = gzip.compress(b"hello", mtime=0)


@pytest.mark.parametrize("signature", ["standard", "sha256"])
@pytest.mark.parametrize("over", [GZIPPED, b"hello"])
def test_i4_a_signature_may_be_over_what_was_sent_or_what_it_becomes(signature: str, over: bytes) -> None:
    store = Store()
    headers = {**signed(signature, SECRET, "1", over, 1000), "content-encoding": "gzip"}
    reply = door(store, auth="hmac", signature=signature).post(headers, GZIPPED)
    assert isinstance(reply, Future)
    [[message]] = store.kept
    assert section.contents(message, *section.locate(message).body) == b"hello"
    refused = door(store, auth="hmac", signature=signature).post({**headers, "webhook-id": "2"} | FORGED, GZIPPED)
    assert isinstance(refused, Reply)
    assert refused.status == 401


FORGED = {"x-hub-signature-256": "sha256=0"}


@pytest.mark.parametrize(
    ("coding", "body"),
    [
        ("GZip", GZIPPED),
        ("x-gzip", gzip.compress(b"hel", mtime=0) + gzip.compress(b"lo", mtime=0)),
        ("deflate", zlib.compress(b"hello")),
        ("deflate", zlib.compress(b"hello")[2:-4]),
        ("identity", b"hello"),
    ],
)
def test_a_body_that_is_compressed_is_taken(coding: str, body: bytes) -> None:
    store = Store()
    assert isinstance(door(store).post({"content-encoding": coding}, body), Future)
    [[message]] = store.kept
    assert section.contents(message, *section.locate(message).body) == b"hello"


@pytest.mark.parametrize(
    ("coding", "body", "status"),
    [
        ("br", b"hello", 415),
        ("gzip, gzip", GZIPPED, 415),
        ("gzip", b"hello", 400),
        ("gzip", GZIPPED[:-3], 400),
        ("gzip", gzip.compress(bytes((1 << 20) + 1)), 413),
        ("deflate", zlib.compress(bytes(1 << 24)), 413),
    ],
)
def test_a_body_that_cannot_be_read_is_refused(coding: str, body: bytes, status: int) -> None:
    store = Store()
    reply = door(store).post({"content-encoding": coding}, body)
    assert isinstance(reply, Reply)
    assert reply.status == status
    assert not store.kept
