"""The messages of a control channel: JSON objects to and from a listener.

What it is: the objects ``accept``, ``request``, ``response`` and ``renewToken``, and the choice of headers. What it is not:
their frames, nor the bodies after them.
Spec: Microsoft Learn, "Azure Relay Hybrid Connections protocol" (accept message, request message, responding to requests,
listener token renewal).

Invariants:
    I1. No token for the relay reaches a listener, and no hop-by-hop header is passed on.
    I2. A listener's message is checked before any of it reaches a requester: no line end passes in a header.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from isthmus.errors import IsthmusError

__all__ = [
    "Command",
    "MessageError",
    "Renewal",
    "Response",
    "accept",
    "connect_headers",
    "fetch",
    "read_command",
    "request",
    "request_headers",
    "token",
    "with_via",
]

# Hop-by-hop headers (RFC 9110 7.6.1), and those of message framing (RFC 9112), between requester and relay.
_OF_CONNECTION = frozenset(
    {
        "close", "connection", "content-length", "expect", "host", "keep-alive", "proxy-authorization",
        "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade",
    }
)  # fmt: skip
_TOKEN_HEADER = "servicebusauthorization"
_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,256}")
_UNSENDABLE = re.compile(r"[^\t\x20-\x7e\x80-\xff]")
# Bytes of a header that are not UTF-8, as the HTTP server represents them.
_NO_TEXT = re.compile(r"[\udc80-\udcff]")


class MessageError(IsthmusError):
    """A listener sent an invalid message."""

    code = "relay-message"


@dataclass(frozen=True, slots=True)
class Response:
    """The head of a listener's answer.

    Attributes:
        request_id: of the request that it answers.
        status: HTTP status.
        reason: its phrase; "" for the usual one.
        headers: names and values.
        has_body: whether a binary message follows.
    """

    request_id: str
    status: int
    reason: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    has_body: bool = False


@dataclass(frozen=True, slots=True)
class Renewal:
    """Another token for the control channel."""

    token: str


Command = Response | Renewal


def request_headers(headers: Iterable[tuple[str, str]], via: str, *, strip_authorization: bool) -> dict[str, str]:
    """The headers of an HTTP request for a listener; several of one name are joined.

    Args:
        headers: as received.
        via: the relay's host, which is added to ``Via``.
        strip_authorization: whether ``Authorization`` was the token for the relay.
    """
    left_out = _OF_CONNECTION | {_TOKEN_HEADER} | ({"authorization"} if strip_authorization else set())
    passed = _joined((name, value) for name, value in headers if name.lower() not in left_out)
    return with_via(passed, via)


def connect_headers(headers: Iterable[tuple[str, str]], *, strip_authorization: bool) -> dict[str, str]:
    """The headers of a WebSocket handshake for a listener: all except the token for the relay."""
    left_out = {_TOKEN_HEADER} | ({"authorization"} if strip_authorization else set())
    return _joined((name, value) for name, value in headers if name.lower() not in left_out)


def _joined(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    found: dict[str, tuple[str, str]] = {}
    for name, raw in headers:
        key, value = name.lower(), _NO_TEXT.sub(lambda found: chr(ord(found[0]) - 0xDC00), raw)
        if key in found:
            separator = "; " if key == "cookie" else ", "
            found[key] = found[key][0], found[key][1] + separator + value
        else:
            found[key] = name, value
    return dict(found.values())


def with_via(headers: dict[str, str], host: str) -> dict[str, str]:
    """The headers with the relay's host at the end of ``Via`` (RFC 9110 7.6.3)."""
    name = next((each for each in headers if each.lower() == "via"), "Via")
    before = headers.get(name, "")
    return {**headers, name: f"{before}, 1.1 {host}" if before else f"1.1 {host}"}


def token(text: str) -> str:
    """A text that is a valid token of a header (RFC 9110 5.6.2); "" where it is not."""
    word = text.strip()
    return word if _NAME.fullmatch(word) else ""


def accept(address: str, connection_id: str, headers: dict[str, str], remote: tuple[str, int]) -> str:
    """The message about a requester's WebSocket."""
    fields = {"address": address, "id": connection_id, "connectHeaders": headers, "remoteEndpoint": _endpoint(remote)}
    return json.dumps({"accept": fields})


def request(
    address: str, request_id: str, target: str, method: str, headers: dict[str, str], remote: tuple[str, int], *,
    has_body: bool,
) -> str:  # fmt: skip
    """The message about an HTTP request."""
    fields = {
        "address": address, "id": request_id, "requestTarget": target, "method": method,
        "remoteEndpoint": _endpoint(remote), "requestHeaders": headers, "body": has_body,
    }  # fmt: skip
    return json.dumps({"request": fields})


def fetch(address: str, request_id: str) -> str:
    """The message about an HTTP request that the listener is to fetch."""
    return json.dumps({"request": {"address": address, "id": request_id}})


def _endpoint(remote: tuple[str, int]) -> dict[str, Any]:
    return {"address": remote[0], "port": remote[1]}


def read_command(text: bytes) -> Command | None:
    """A listener's message; None for a kind that this relay does not know.

    Raises:
        MessageError: it is malformed.
    """
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        raise MessageError("A text message is no JSON.") from None
    if not isinstance(said, dict):
        raise MessageError("A text message is no JSON object.")
    if isinstance(answer := said.get("response"), dict):
        return _response(answer)
    if isinstance(renewal := said.get("renewToken"), dict):
        token = renewal.get("token")
        if not isinstance(token, str):
            raise MessageError("A renewToken has no text 'token'.")
        return Renewal(token)
    return None


def _response(answer: dict[str, Any]) -> Response:
    request_id, status = answer.get("requestId"), answer.get("statusCode")
    if not isinstance(request_id, str) or not request_id:
        raise MessageError("A response has no 'requestId'.")
    if isinstance(status, str) and status.isascii() and status.isdigit() and len(status) == 3:
        status = int(status)
    headers = answer.get("responseHeaders") or {}
    has_body = bool(answer.get("body"))
    if not isinstance(status, int) or not 200 <= status <= 999 or not isinstance(headers, dict):
        reason = "The listener answered with a status or with headers that HTTP does not have."
        return Response(request_id, 0, reason, (), has_body)
    described = answer.get("statusDescription")
    phrase = _UNSENDABLE.sub(" ", described)[:512] if isinstance(described, str) else ""
    return Response(request_id, status, phrase, tuple(_sendable(headers)), has_body)


def _sendable(headers: dict[str, Any]) -> Iterable[tuple[str, str]]:
    for name, value in headers.items():
        if name.lower() in _OF_CONNECTION or not _NAME.fullmatch(name):
            continue
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, str | int | float) and not isinstance(each, bool):
                yield name, _UNSENDABLE.sub(" ", str(each))
