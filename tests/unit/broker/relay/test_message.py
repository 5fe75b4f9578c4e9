"""What passes between relay and listener."""

from __future__ import annotations

import json

import pytest

from isthmus.broker.relay import message
from isthmus.broker.relay.address import find_name, rendezvous_address, without_own
from isthmus.broker.relay.message import MessageError, Renewal, Response, read_command

HEADERS = [
    ("Host", "h"), ("Connection", "close"), ("Transfer-Encoding", "chunked"), ("ServiceBusAuthorization", "secret"),
    ("Authorization", "Basic x"), ("X-Own", "1"), ("x-own", "2"), ("Cookie", "a=1"), ("cookie", "b=2"), ("Via", "1.1 a"),
]  # fmt: skip


def test_headers_of_a_request_i1() -> None:
    passed = message.request_headers(HEADERS, "relay", strip_authorization=False)
    assert passed == {"Authorization": "Basic x", "X-Own": "1, 2", "Cookie": "a=1; b=2", "Via": "1.1 a, 1.1 relay"}
    assert "Authorization" not in message.request_headers(HEADERS, "relay", strip_authorization=True)


def test_bytes_that_are_no_text_reach_a_listener_as_text() -> None:
    """JSON has no form for half of a surrogate pair that every reader takes."""
    came = [("X-Name", b"caf\xe9 \xc3\xa9".decode(errors="surrogateescape")), ("X-Name", "\udcff")]
    assert message.connect_headers(came, strip_authorization=True) == {"X-Name": "caf\xe9 \xe9, \xff"}
    assert message.request_headers(came, "r", strip_authorization=True)["X-Name"] == "caf\xe9 \xe9, \xff"


def test_headers_of_a_connection_are_all_but_the_token_i1() -> None:
    passed = message.connect_headers(HEADERS, strip_authorization=True)
    assert "ServiceBusAuthorization" not in passed
    assert "Authorization" not in passed
    assert passed["Host"] == "h"


def said(**response: object) -> bytes:
    return json.dumps({"response": {"requestId": "r", "statusCode": 200, **response}}).encode()


def test_answers_are_read() -> None:
    assert read_command(said(body=True, statusDescription="Fine")) == Response("r", 200, "Fine", (), True)
    assert read_command(said(statusCode="204")) == Response("r", 204)
    headers = {"A": "1", "b": ["x", "y"], "n": 3, "Content-Length": "9", "bad name": "x", "t": True}
    found = read_command(said(responseHeaders=headers))
    assert isinstance(found, Response)
    assert found.headers == (("A", "1"), ("b", "x"), ("b", "y"), ("n", "3"))
    assert read_command(b'{"renewToken": {"token": "t"}}') == Renewal("t")
    assert read_command(b'{"ping": {}}') is None


def test_no_line_end_passes_i2() -> None:
    found = read_command(said(statusDescription="a\r\nb", responseHeaders={"A": "x\r\nSet-Cookie: y"}))
    assert isinstance(found, Response)
    assert (found.reason, found.headers) == ("a  b", (("A", "x  Set-Cookie: y"),))


@pytest.mark.parametrize("status", [99, 101, 1000, "x", None, True])
def test_a_status_that_http_does_not_have_is_reported(status: object) -> None:
    found = read_command(said(statusCode=status))
    assert isinstance(found, Response)
    assert found.status == 0


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"[" * 100_000, b'{"response": {}}', b'{"renewToken": {}}', b"\xff", b"nul"]
)
def test_what_is_no_message_is_refused(text: bytes) -> None:
    with pytest.raises(MessageError):
        read_command(text)


def test_addresses() -> None:
    names = {"stock", "shop", "shop/prices"}
    assert find_name("/Stock", names.__contains__) == "stock"
    assert find_name("/shop/prices/today", names.__contains__) == "shop/prices"
    assert find_name("/$hc/shop/else", names.__contains__) == "shop"
    assert find_name("/%24hc/sto%63k/", names.__contains__) == "stock"
    assert find_name("/stocks", names.__contains__) == ""
    assert without_own("sb%2dhc-token=x&a%3d=1&%73B-hc-id") == "a%3d=1"
    assert without_own("a=1&sb-hc-token=x&b=%20&SB-HC-ID=2&&c") == "a=1&b=%20&c"
    assert (
        rendezvous_address("wss://h:1", "/stock/x%20y", "a=1", {"sb-hc-action": "request", "sb-hc-id": "a&b"})
        == "wss://h:1/$hc/stock/x%20y?a=1&sb-hc-action=request&sb-hc-id=a%26b"
    )
