"""What a served namespace does with input that is wrong, at every scope, and with clients that stay silent.

After each case: the right error at the right scope, one line in the log, no traceback, no key or token in it, and a
normal client is served.
"""

from __future__ import annotations

import http.client
import itertools
import os
import re
import signal
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from harness.client.fault_client import Raw, endpoint_for, make_message, works
from harness.client.transaction_client import attach_coordinator, declare, discharge
from isthmus.amqp import BATCH_FORMAT, Closed, LinkDetached, Role, SessionEnded, codec, section
from isthmus.amqp.frame import AMQP_HEADER, SASL_HEADER, frame
from isthmus.amqp.performative import Accepted, Begin, Open, Rejected, Source, Target, TransactionalState, Transfer
from isthmus.amqp.types import Symbol, UInt
from isthmus.broker.security.sas import make_token
from isthmus.connectors.servicebus.connection_string import ConnectionString
from isthmus.testing.namespace import NamespaceProcess, namespace

CONFIG = "queues: {orders: {}, orders-secret: {}, normal: {}, closed: {status: Disabled}}"
HOUR_MS = 3_600_000
LIMIT_BYTES = 1 << 20
GOOD = make_message(b"good")


@pytest.fixture(scope="module")
def ns(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NamespaceProcess]:
    with namespace(tmp_path_factory.mktemp("bad") / "data", config=CONFIG) as running:
        yield running


@pytest.fixture
def log(ns: NamespaceProcess) -> Iterator[Callable[[], list[str]]]:
    """The lines that the test caused; what must never be in a log is looked for at the end of each test."""
    before = len(ns.log())

    def lines() -> list[str]:
        return ns.log()[before:].splitlines()

    yield lines
    works(ns, "normal")
    text = "\n".join(lines())
    assert "Traceback" not in text
    for secret in secrets_of(ns):
        assert secret not in text
    assert "sig=" not in text
    assert "SharedAccessSignature sr" not in text


def secrets_of(ns: NamespaceProcess) -> list[str]:
    found: list[str] = re.findall(r'"([A-Za-z0-9+/=]{40,})"', (ns.data / "keys.json").read_text())
    assert found
    return found


def key_of(ns: NamespaceProcess) -> tuple[str, str]:
    parsed = ConnectionString.parse(ns.connection_string)
    assert parsed.key is not None
    return parsed.key_name, parsed.key.reveal()


def one_line(log: Callable[[], list[str]], *parts: str) -> None:
    """Exactly one line was written, and it holds the parts."""
    limit = time.monotonic() + 5
    while not log() and time.monotonic() < limit:
        time.sleep(0.02)
    time.sleep(0.05)
    lines = log()
    assert len(lines) == 1, lines
    for part in parts:
        assert part in lines[0], lines[0]


# ---- the connection's scope

DEEP = b"\0" * 40000
OPEN = frame(0, Open("x", "host", 65536, 100))
CONNECTION_FAULTS: dict[str, tuple[bytes, str]] = {
    "oversize frame": (struct.pack(">IBBH", 70_000, 2, 0, 0), "amqp:connection:framing-error"),
    "undersize frame": (struct.pack(">IBBH", 7, 2, 0, 0), "amqp:connection:framing-error"),
    "data offset of one": (struct.pack(">IBBH", 8, 1, 0, 0), "amqp:connection:framing-error"),
    "data offset beyond the end": (struct.pack(">IBBH", 8, 9, 0, 0), "amqp:connection:framing-error"),
    "unknown frame type": (struct.pack(">IBBH", 8, 2, 7, 0), "amqp:connection:framing-error"),
    "sasl frame after open": (frame(0, b"\0S\x41\xc0\x03\x01\xa3\0", 1), "amqp:connection:framing-error"),
    "unknown performative": (frame(0, b"\0S\x99\x45"), "amqp:decode-error"),
    "unknown performative by name": (frame(0, b"\0\xa3\x03foo\x45"), "amqp:decode-error"),
    "performative that is no list": (frame(0, b"\0S\x11\x41"), "amqp:decode-error"),
    "performative cut off": (frame(0, b"\0S\x11\xc0\xff\x04"), "amqp:decode-error"),
    "constructor that is none": (frame(0, b"\0S\x11\xc0\x03\x02\x0f\x0f"), "amqp:decode-error"),
    "nested without end": (frame(0, DEEP), "amqp:decode-error"),
    "array of four billion": (
        frame(0, b"\0S\x10\xc0\x14\x01" + b"\xf0\0\0\0\x05\xff\xff\xff\xff\x43"),
        "amqp:decode-error",
    ),
    "text that is no UTF-8": (frame(0, b"\0S\x11\xc0\x06\x01\xa1\x03\xff\xfe\xfd"), "amqp:decode-error"),
    "begin with a text for a number": (frame(5, b"\0S\x11\xc0\x06\x02\x40\xa1\x02no"), "amqp:decode-error"),
    "second open": (OPEN, "amqp:not-allowed"),
    "begin over channel-max": (frame(60_000, Begin(None, UInt(0), UInt(1), UInt(1), UInt(1))), "amqp:not-allowed"),
    "begin twice": (2 * frame(7, Begin(None, UInt(0), UInt(1), UInt(1), UInt(1))), "amqp:not-allowed"),
    "answer to no begin": (frame(7, Begin(3000, UInt(0), UInt(1), UInt(1), UInt(1))), "amqp:not-allowed"),
    "frame without a session": (frame(9, Transfer(UInt(0), UInt(0), b"t")), "amqp:not-allowed"),
    "sasl performative as amqp": (frame(0, b"\0S\x41\xc0\x03\x01\xa3\0"), "amqp:not-allowed"),
}


@pytest.mark.parametrize("fault", CONNECTION_FAULTS)
def test_a_fault_of_the_connection_closes_it(ns: NamespaceProcess, log: Any, fault: str) -> None:
    raw, condition = CONNECTION_FAULTS[fault]
    with Raw(ns).opened() as client:
        client.push(raw)
        closed = client.wait(Closed)
        assert closed.error is not None
        assert closed.error.condition == condition
        client.wait_end()
    one_line(log, condition)


def test_a_fault_before_open_closes_the_stream(ns: NamespaceProcess, log: Any) -> None:
    with Raw(ns) as client:
        client.push(SASL_HEADER + frame(0, DEEP, 1))
        client.wait_end()
    one_line(log, "decode-error")


@pytest.mark.parametrize(
    "header", [b"AMQP\0\0\x09\x01", b"AMQP\2\1\0\0", b"AMQP\xff\xff\xff\xff", AMQP_HEADER[:4] + b"GET "]
)
def test_another_protocol_header_is_answered_with_ours(ns: NamespaceProcess, log: Any, header: bytes) -> None:
    with Raw(ns) as client:
        client.push(header)
        assert client.wait_end()[:4] == b"AMQP"
    one_line(log, "framing-error")


@pytest.mark.parametrize(
    "garbage", [b"\0\0\0\0\0\0\0\0", b"SSH-2.0-OpenSSH_9.9\r\n", b"\xff" * 100_000, b"GE\0 / HTTP/1.1\r\n\r\n"]
)
def test_garbage_is_dropped(ns: NamespaceProcess, log: Any, garbage: bytes) -> None:
    with Raw(ns) as client:
        client.push(garbage)
        client.wait_end()
    one_line(log, "connection dropped")


@pytest.mark.parametrize("garbage", [b"\x16\x03\x01\0\x10" + b"\xff" * 16, b"\x16" + b"\xff" * 5000])
def test_tls_garbage_is_dropped(ns: NamespaceProcess, log: Any, garbage: bytes) -> None:
    with Raw(ns) as client:
        client.push(garbage)
        client.wait_end()
    one_line(log, "connection dropped")


def test_garbage_within_tls_is_dropped(ns: NamespaceProcess, log: Any) -> None:
    context = ssl.create_default_context(cafile=ns.ca_file)
    with (
        socket.create_connection(("127.0.0.1", ns.ports["tls"]), 10) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as secure,
    ):
        secure.sendall(b"\xff" * 100)
        assert read_all(secure) == b""
    one_line(log, "connection dropped")


@pytest.mark.parametrize(
    "text",
    [
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET \x00\x01 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nbad header line\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"PUT /q HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
        b"PUT /q HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\nzzz\r\n",
        b"PUT /q HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzzz\r\n",
        b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 20_000 + b"\r\n",
    ],
)
def test_http_garbage_is_answered_and_nothing_more(ns: NamespaceProcess, log: Any, text: bytes) -> None:
    with Raw(ns) as client:
        client.push(text)
        assert client.wait_answer()[:10] in (b"HTTP/1.1 4", b"HTTP/1.0 4")
    one_line(log, "http refused")


HTTP_REFUSALS: dict[str, tuple[str, str, bytes, int]] = {
    "no token": ("PUT", "", b"", 401),
    "garbage for a token": ("PUT", "SharedAccessSignature \xff\xfe=&&sr", b"", 401),
    "expired": ("DELETE", "expired", b"", 401),
    "wrong key": ("GET", "wrong key", b"", 401),
    "another entity's": ("DELETE", "other", b"", 401),
    "a document that is none": ("PUT", "good", b"<entry><unclosed", 400),
    "a document of entities": ("PUT", "good", b'<!DOCTYPE x [<!ENTITY a "aaaa">]><entry>&a;</entry>', 400),
    "a document over the limit": ("PUT", "good", b" " * (4 << 20), 413),
    "an unknown version": ("GET-BAD-VERSION", "good", b"", 400),
}


@pytest.mark.parametrize("refusal", HTTP_REFUSALS)
def test_administration_refuses(ns: NamespaceProcess, log: Any, refusal: str) -> None:
    method, authorization, body, status = HTTP_REFUSALS[refusal]
    name, key = key_of(ns)
    host = f"127.0.0.1:{ns.ports['http']}"
    later = int(time.time() * 1000) + HOUR_MS
    tokens = {
        "good": make_token(f"http://{host}/orders", name, key, later),
        "expired": make_token(f"http://{host}/orders", name, key, later - 2 * HOUR_MS),
        "wrong key": make_token(f"http://{host}/orders", name, "A" * 44, later),
        "other": make_token(f"http://{host}/normal", name, key, later),
    }
    token = tokens.get(authorization, authorization)
    version = "no" if method == "GET-BAD-VERSION" else "2021-05"
    client = http.client.HTTPConnection("127.0.0.1", ns.ports["http"], timeout=10)
    headers = {"Authorization": token.encode("latin-1")} if token else {}
    client.request(method.partition("-")[0], f"/orders?api-version={version}", body or None, headers)
    reply = client.getresponse()
    page = reply.read()
    client.close()
    assert reply.status == status
    assert key.encode() not in page
    assert b"Traceback" not in page
    one_line(log, f"refused with {status}")


# ---- the session's scope


def attached(client: Raw, path: str = "orders") -> Any:
    link = client.session.attach_sender("s", Target(path), source=Source("me"))
    client.wait_until(lambda: link.credit > 0)
    return link


SESSION_FAULTS: dict[str, tuple[Callable[[Raw], None], str]] = {
    "transfer on no handle": (
        lambda c: c.session.write(Transfer(UInt(77), UInt(0), b"t")),
        "amqp:session:unattached-handle",
    ),
    "transfer without delivery-id": (
        lambda c: c.session.write(Transfer(UInt(attached(c).handle), None, None)),
        "amqp:invalid-field",
    ),
    "handle over the limit": (
        lambda c: c.push(frame(c.session.channel, _attach_with_handle(50_000))),
        "amqp:not-allowed",
    ),
    "handle in use": (
        lambda c: c.push(frame(c.session.channel, _attach_with_handle(attached(c).handle))),
        "amqp:session:handle-in-use",
    ),
}


def _attach_with_handle(handle: int) -> bytes:
    fields = [codec.encode("other"), codec.encode(UInt(handle)), b"\x42"]
    return b"\0S\x12" + codec.encode_list(fields)


@pytest.mark.parametrize("fault", SESSION_FAULTS)
def test_a_fault_of_the_session_ends_it(ns: NamespaceProcess, log: Any, fault: str) -> None:
    make, condition = SESSION_FAULTS[fault]
    with Raw(ns).opened() as client:
        make(client)
        ended = client.wait(SessionEnded)
        assert ended.error is not None
        assert ended.error.condition == condition
        assert not client.of(Closed)
        client.session = client.connection.begin()  # the connection still works
        attached(client)
    one_line(log, condition)


# ---- the link's scope


@pytest.mark.parametrize("role", [Role.SENDER, Role.RECEIVER])
@pytest.mark.parametrize(
    ("address", "condition"),
    [
        ("nothing-here", "amqp:not-found"),
        ("orders/Subscriptions/none", "amqp:not-found"),
        ("../keys.json", "amqp:not-found"),
        ("", "com.microsoft:argument-error"),
        (None, "com.microsoft:argument-error"),
        ("x" * 5000, "amqp:not-found"),
    ],
)
def test_an_attach_is_refused(ns: NamespaceProcess, log: Any, role: Role, address: str | None, condition: str) -> None:
    with Raw(ns).opened() as client:
        if role is Role.SENDER:
            client.session.attach_sender("l", Target(address), source=Source("me"))
        else:
            client.session.attach_receiver("l", Source(address), target=Target("me")).grant(1)
        detached = client.wait(LinkDetached)
        assert detached.error is not None
        assert detached.error.condition == condition
        assert not client.of(SessionEnded, Closed)
        attached(client)
    one_line(log, condition)


def test_a_disabled_queue_takes_and_gives_nothing(ns: NamespaceProcess, log: Any) -> None:
    with Raw(ns).opened() as client:
        client.session.attach_sender("s", Target("closed"), source=Source("me"))
        client.session.attach_receiver("r", Source("closed"), target=Target("me")).grant(1)
        client.wait_until(lambda: len(client.of(LinkDetached)) == 2)
        conditions = [str(event.error.condition) for event in client.of(LinkDetached) if event.error is not None]
        assert conditions == ["com.microsoft:entity-disabled"] * 2
    lines = log()
    assert len(lines) == 2, lines
    assert all("attach refused" in line for line in lines)


def test_a_coordinator_without_a_credential_reaches_nothing(ns: NamespaceProcess, log: Any) -> None:
    """Clients attach it before they show their first token."""
    with Raw(ns).opened(plain=False) as client:
        control = attach_coordinator(client.session)
        client.wait_until(lambda: control.credit)
        txn_id = client.outcome(declare(control)).txn_id
        client.session.attach_sender("l", Target("queue"), source=Source("me"))
        detached = client.wait(LinkDetached)
        assert detached.error is not None
        assert detached.error.condition == "amqp:unauthorized-access"
        assert isinstance(client.outcome(discharge(control, txn_id)), Accepted)
    one_line(log, "amqp:unauthorized-access")


def test_more_than_the_credit_costs_the_link(ns: NamespaceProcess, log: Any) -> None:
    with Raw(ns).opened() as client:
        link = attached(client)
        # So small that one read of the namespace brings more than the credit.
        payload, count = make_message(b""), link.credit + 1000
        tags, next_burst = itertools.count(), 0.0

        def burst() -> list[Any]:
            """A namespace that settles the first of a burst before it reads the rest gives credit for the rest: it is
            suspended while a burst is sent, and bursts continue until one is read at once."""
            nonlocal next_burst
            if not (found := client.of(LinkDetached)) and time.monotonic() > next_burst:
                next_burst = time.monotonic() + 1.0
                link.credit = client.session.send_window = 1 << 20
                os.kill(ns.pid, signal.SIGSTOP)
                threading.Timer(0.2, os.kill, (ns.pid, signal.SIGCONT)).start()
                link.send_many([payload] * count, [struct.pack(">I", next(tags)) for _ in range(count)])
            return found

        (detached,) = client.wait_until(burst)
        assert detached.error is not None
        assert detached.error.condition == "amqp:link:transfer-limit-exceeded"
        assert not client.of(SessionEnded, Closed)
    one_line(log, "amqp:link:transfer-limit-exceeded")


def test_a_message_far_over_the_limit_costs_the_link(ns: NamespaceProcess, log: Any) -> None:
    with Raw(ns).opened() as client:
        link = attached(client)
        link.send(make_message(bytes(40 * LIMIT_BYTES)), b"t")
        detached = client.wait(LinkDetached)
        assert detached.error is not None
        assert detached.error.condition == "amqp:link:message-size-exceeded"
        assert not client.of(SessionEnded, Closed)
    one_line(log, "amqp:link:message-size-exceeded")


# ---- the message's scope

BAD_MESSAGES: dict[str, tuple[bytes, int, Any, str]] = {
    "over the limit": (make_message(bytes(LIMIT_BYTES)), 0, None, "amqp:link:message-size-exceeded"),
    "garbage": (b"\xff" * 100, 0, None, "com.microsoft:argument-error"),
    "empty": (b"", 0, None, "com.microsoft:argument-error"),
    "cut off": (GOOD[:-3], 0, None, "com.microsoft:argument-error"),
    "properties that are no list": (b"\0Ss\x41\0Su\xa0\x01a", 0, None, "com.microsoft:argument-error"),
    "header that is no list": (b"\0Sp\xa1\x01a\0Su\xa0\x01a", 0, None, "com.microsoft:argument-error"),
    "nested without end": (b"\0St" + DEEP, 0, None, "com.microsoft:argument-error"),
    "envelope of garbage": (b"\0Su\xa0\x02\xff\xff", BATCH_FORMAT, None, "com.microsoft:argument-error"),
    "envelope with one bad message": (
        b"\0Su\xa0" + bytes([len(GOOD)]) + GOOD + b"\0Su\xa0\x01\0",
        BATCH_FORMAT,
        None,
        "com.microsoft:argument-error",
    ),
    "in no transaction": (GOOD, 0, TransactionalState(b"x"), "amqp:transaction:unknown-id"),
}


@pytest.mark.parametrize("fault", BAD_MESSAGES)
def test_a_bad_message_is_rejected_alone(ns: NamespaceProcess, log: Any, fault: str) -> None:
    payload, message_format, state, condition = BAD_MESSAGES[fault]
    with Raw(ns).opened() as client:
        link = attached(client)
        if state is None:
            delivery_id = link.send(payload, b"bad!", message_format=message_format)
        else:
            delivery_id = 0
            transfer = Transfer(UInt(link.handle), UInt(0), b"bad!", UInt(0), False, False, state=state)
            client.push(frame(client.session.channel, transfer.encode() + payload))
            client.session.remember_sent(link, 0, 1, False)
        outcome = client.outcome(delivery_id)
        assert isinstance(outcome, Rejected)
        assert outcome.error is not None
        assert outcome.error.condition == condition
        assert not client.of(LinkDetached, SessionEnded, Closed)
    one_line(log, condition)


# ---- requests


def management_request(**properties: Any) -> bytes:
    body = properties.pop("body", None)
    return section.encode_message(
        body,
        properties={"message_id": "m", "reply_to": "me"},
        application_properties=properties,
        value_body=True,
    )


REQUESTS: dict[str, tuple[bytes, int]] = {
    "unknown operation": (management_request(operation="com.microsoft:fly", body={}), 400),
    "no fields": (management_request(operation="com.microsoft:peek-message", body={}), 400),
    "wrong types": (
        management_request(
            operation="com.microsoft:peek-message", body={"from-sequence-number": "a", "message-count": []}
        ),
        400,
    ),
    "no map": (management_request(operation="com.microsoft:renew-lock", body=[1, 2]), 400),
    "locks that are none": (
        management_request(operation="com.microsoft:renew-lock", body={"lock-tokens": [1, "x"]}),
        400,
    ),
    "huge count": (
        management_request(
            operation="com.microsoft:peek-message", body={"from-sequence-number": -(2**63), "message-count": 2**31 - 1}
        ),
        200,
    ),
    "schedule garbage": (
        management_request(operation="com.microsoft:schedule-message", body={"messages": [{"message": b"\xff"}]}),
        400,
    ),
    "cancel nothing": (
        management_request(operation="com.microsoft:cancel-scheduled-message", body={"sequence-numbers": [10**18]}),
        404,
    ),
}


@pytest.mark.parametrize("request_name", REQUESTS)
def test_a_bad_request_gets_its_status(ns: NamespaceProcess, log: Any, request_name: str) -> None:
    payload, status = REQUESTS[request_name]
    with Raw(ns).opened() as client:
        reply = client.ask("orders/$management", payload)
        got = reply["statusCode"]
        assert got == status or (status == 200 and got in (200, 204))
    if status >= 400:
        one_line(log, "request failed")


@pytest.mark.parametrize("payload", [b"\xff\xff", b"", management_request(body=1), b"\0Ss" + DEEP])
def test_what_is_no_request_is_rejected(ns: NamespaceProcess, log: Any, payload: bytes) -> None:
    with Raw(ns).opened() as client:
        link = client.session.attach_sender("s", Target("orders/$management"), source=Source("me"))
        client.wait_until(lambda: link.credit > 0)
        assert isinstance(client.outcome(link.send(payload, b"t")), Rejected)
    one_line(log, "request rejected")


# ---- tokens and rights


def put_token(client: Raw, token: Any, audience: Any, **properties: Any) -> dict[Any, Any]:
    payload = section.encode_message(
        token,
        properties={"message_id": "m", "reply_to": "me"},
        application_properties={
            "operation": "put-token",
            "type": "servicebus.windows.net:sastoken",
            "name": audience,
            **properties,
        },
        value_body=True,
    )
    return client.ask("$cbs", payload)


@pytest.mark.parametrize(
    "kind", ["no token", "garbage", "wrong key", "unknown rule", "expired", "other entity", "number", "long"]
)
def test_a_token_that_opens_nothing_is_refused(ns: NamespaceProcess, log: Any, kind: str) -> None:
    name, key = key_of(ns)
    host = endpoint_for(ns).authority
    resource, audience = f"sb://{host}/orders", f"sb://{host}/orders"
    later = int(time.time() * 1000) + HOUR_MS
    token: Any = {
        "no token": "",
        "garbage": "SharedAccessSignature sr=\0&&==&sig=",
        "wrong key": make_token(resource, name, "A" * 44, later),
        "unknown rule": make_token(resource, "nobody", key, later),
        "expired": make_token(resource, name, key, later - 2 * HOUR_MS),
        "other entity": make_token(f"sb://{host}/orders", name, key, later),
        "number": 12345,
        "long": make_token(resource, name, key, later) + "&x=" + "a" * 50_000,
    }[kind]
    if kind == "other entity":
        audience = f"sb://{host}/orders-secret"
    with Raw(ns).opened(plain=False) as client:
        reply = put_token(client, token, audience)
        assert reply["status-code"] == (400 if kind == "number" else 401)
        link = client.session.attach_sender("s", Target("orders"), source=Source("me"))
        detached = client.wait(LinkDetached)
        assert detached.error is not None
        assert detached.error.condition == "amqp:unauthorized-access"
        assert not link.credit
    lines = log()
    assert len(lines) == 2, lines
    assert "request failed" in lines[0]
    assert "attach refused" in lines[1]


@pytest.mark.parametrize(
    "address", ["orders-secret", "orders-secret/$management", "", "normal", "$cbs/../orders-secret"]
)
def test_a_token_for_orders_opens_nothing_else(ns: NamespaceProcess, log: Any, address: str) -> None:
    name, key = key_of(ns)
    host = endpoint_for(ns).authority
    with Raw(ns).opened(plain=False) as client:
        token = make_token(f"sb://{host}/orders", name, key, int(time.time() * 1000) + HOUR_MS)
        assert put_token(client, token, f"sb://{host}/orders")["status-code"] == 202
        attached(client, "orders")
        client.session.attach_receiver("r", Source(address), target=Target("me"))
        assert client.wait(LinkDetached).error is not None
    one_line(log, "attach refused")


def test_a_link_ends_when_its_token_does(ns: NamespaceProcess, log: Any) -> None:
    name, key = key_of(ns)
    host = endpoint_for(ns).authority
    with Raw(ns).opened(plain=False) as client:
        token = make_token(f"sb://{host}/orders", name, key, int(time.time() * 1000) + 4000)
        assert put_token(client, token, f"sb://{host}/orders")["status-code"] == 202
        attached(client, "orders")
        detached = client.wait(LinkDetached, 20)
        assert detached.error is not None
        assert detached.error.condition == "amqp:unauthorized-access"
    one_line(log, "link detached", "amqp:unauthorized-access")


@pytest.mark.parametrize(
    "choice", [("PLAIN", b"\0root\0wrong"), ("PLAIN", b"nothing"), ("SCRAM-SHA-1", b""), ("PLAIN", None)]
)
def test_sasl_refuses(ns: NamespaceProcess, log: Any, choice: tuple[str, bytes | None]) -> None:
    with Raw(ns) as client:
        mechanism, response = choice
        body = [codec.encode(Symbol(mechanism)), codec.encode(response)]
        client.push(SASL_HEADER + frame(0, b"\0S\x41" + codec.encode_list(body), 1))
        assert b"\0S\x44\xc0" in client.wait_end()
    assert any("sasl refused" in line for line in log())


# ---- clients that stay silent


def read_all(stream: socket.socket) -> bytes:
    data = b""
    try:
        while chunk := stream.recv(65536):
            data += chunk
    except (ConnectionResetError, ssl.SSLError):
        pass
    return data


@dataclass
class Idler:
    """A client that begins and does not continue."""

    says: bytes
    drip: bytes = b""


def test_who_does_not_continue_is_dropped(ns: NamespaceProcess, log: Any) -> None:
    idlers = {
        "no bytes": Idler(b""),
        "half a header": Idler(b"AMQ"),
        "header only": Idler(AMQP_HEADER),
        "sasl header only": Idler(SASL_HEADER),
        "no token": Idler(AMQP_HEADER + OPEN),
        "half a frame": Idler(AMQP_HEADER + OPEN[:-5]),
        "tls begun": Idler(b"\x16\x03\x01\x02\x00\x01\x00"),
        "http begun": Idler(b"GET / HTTP/1.1\r\n"),
        "slow amqp": Idler(AMQP_HEADER + OPEN + b"\0\0\x10\0\x02\0\0\0", drip=b"\0"),
        "slow http": Idler(b"GET / HTTP/1.1\r\nHost: x\r\n", drip=b"X: y\r\n"),
    }
    streams = {name: socket.create_connection(("127.0.0.1", ns.ports["amqp"]), 1) for name in idlers}
    for name, stream in streams.items():
        stream.sendall(idlers[name].says)
        stream.settimeout(0.01)
    ended: dict[str, float] = {}
    began = time.monotonic()
    while len(ended) < len(streams) and time.monotonic() < began + 30:
        time.sleep(0.5)
        for name, stream in streams.items():
            if name in ended:
                continue
            try:
                if idlers[name].drip:
                    stream.sendall(idlers[name].drip)
                if not stream.recv(65536):
                    ended[name] = time.monotonic() - began
            except TimeoutError:
                continue
            except OSError:
                ended[name] = time.monotonic() - began
    for stream in streams.values():
        stream.close()
    print(ended)
    assert set(ended) == set(idlers), set(idlers) - set(ended)
    assert all(15 < seconds < 25 for seconds in ended.values())
    assert len(log()) == len(idlers), log()


def test_many_half_open_connections_leave_room_for_others(ns: NamespaceProcess, log: Any) -> None:
    streams = [socket.create_connection(("127.0.0.1", ns.ports["amqp"]), 5) for _ in range(300)]
    for number, stream in enumerate(streams):
        stream.sendall((b"", b"AMQ", AMQP_HEADER, AMQP_HEADER + OPEN, b"GET / HT", b"\x16\x03\x01\x02")[number % 6])
    works(ns, "normal")
    for stream in streams:
        stream.close()
    works(ns, "normal")
    assert log() == [] or all("connection dropped" in line for line in log())


# ---- a token whose resource is a path alone, and a client that names the host as it likes


def test_a_token_for_a_path_alone_opens_no_more_where_the_client_names_that_host(ns: NamespaceProcess) -> None:
    name, key = key_of(ns)
    token = make_token("orders", name, key, int(time.time() * 1000) + HOUR_MS)
    for host in ("orders", "ORDERS", "orders:5672"):
        for verb, path in (
            ("GET", "/orders-secret?api-version=2021-05"),
            ("DELETE", "/orders-secret?api-version=2021-05"),
            ("GET", "/$Resources/queues?api-version=2021-05"),
            ("GET", "/$isthmus/statistics"),
            ("POST", "/$isthmus/backup?name=b"),
        ):
            http_client = http.client.HTTPConnection("127.0.0.1", ns.ports["http"], timeout=10)
            http_client.request(verb, path, headers={"Host": host, "Authorization": token})
            assert http_client.getresponse().status == 401, (host, verb, path)
            http_client.close()
    for audience, status in (("orders-secret", 401), ("", 401), ("orders", 202)):
        with Raw(ns).opened(plain=False) as client:
            assert put_token(client, token, f"sb://orders/{audience}")["status-code"] == status
            client.session.attach_receiver("r", Source("orders-secret"), target=Target("me"))
            refused = client.wait(LinkDetached).error
            assert refused is not None
            assert refused.condition == "amqp:unauthorized-access"
