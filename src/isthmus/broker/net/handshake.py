"""The server's side of a WebSocket handshake in the HTTP server, and the hand-over of the connection after it.

What it is: the check of the request, the answer 101, and the change of protocol of the connection. What it is not: frames.
Spec: RFC 6455 section 4.2.

Invariants:
    I1. Bytes that the client sent after its request reach the new protocol before all later ones.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
from collections.abc import Mapping
from typing import Protocol

from aiohttp import web

__all__ = ["VERSION", "Upgraded", "accept_key", "offers", "refusal", "upgrade"]

VERSION = "13"
_KEY_BYTES = 16
_MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class Upgraded(Protocol):
    """The protocol that has the connection after its handshake; an `asyncio.BaseProtocol` as well.

    It also replaces the parser of the HTTP server's protocol, and so gets the bytes that the client sent after its request.
    """

    over: asyncio.Event
    """Set once the connection is gone."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is handed over."""
        ...

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        """Takes bytes that the client sent after its request."""
        ...

    def feed_eof(self) -> None:
        """The client sends no more."""
        ...


def accept_key(request: web.Request) -> str | None:
    """The answer to a handshake's key; None where the request is not a handshake."""
    key = request.headers.get("Sec-WebSocket-Key", "").strip()
    try:
        is_key = len(base64.b64decode(key, validate=True)) == _KEY_BYTES
    except (binascii.Error, ValueError):
        is_key = False
    if not (
        is_key
        and request.headers.get("Sec-WebSocket-Version", "").strip() == VERSION
        and offers(request, "Upgrade", "websocket")
        and offers(request, "Connection", "upgrade")
    ):
        return None
    return base64.b64encode(hashlib.sha1(key.encode() + _MAGIC, usedforsecurity=False).digest()).decode()


def refusal() -> web.Response:
    """The answer to a request that is not a handshake."""
    return web.Response(
        status=400,
        text=f"This takes a WebSocket handshake of version {VERSION} (RFC 6455).",
        headers={"Sec-WebSocket-Version": VERSION},
    )


def offers(request: web.Request, header: str, word: str) -> bool:
    """Whether a word is one of a header's list."""
    values = ",".join(request.headers.getall(header, ())).split(",")
    return word.lower() in (value.strip().lower() for value in values)


async def upgrade(
    request: web.Request, accepted: str, protocol: Upgraded, headers: Mapping[str, str] = {}
) -> web.StreamResponse | None:
    """Answers 101 and hands the connection to a protocol; returns the answer, for the handler to return once `protocol.over` is set.

    None where the client has gone meanwhile.

    Args:
        request: the handshake.
        accepted: of `accept_key`.
        protocol: gets the connection.
        headers: further ones of the answer.
    """
    answer = web.StreamResponse(status=101)
    answer.headers.update(
        {"Upgrade": "websocket", "Connection": "upgrade", "Sec-WebSocket-Accept": accepted, **headers}
    )
    try:
        await answer.prepare(request)
    except ConnectionError:  # the client has disconnected meanwhile, which is not logged as a fault
        return None
    transport = request.transport
    if transport is None:
        return None
    protocol.connection_made(transport)
    transport.set_protocol(protocol)  # type: ignore[arg-type]
    request.protocol.set_parser(protocol)  # type: ignore[arg-type]
    return answer
