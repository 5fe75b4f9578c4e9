"""A namespace that serves hybrid connections, and a listener that sends the protocol's own frames."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from isthmus.broker.security.keyring import Keyring
from isthmus.broker.security.sas import make_token
from isthmus.broker.server import Options, Server
from isthmus.clock import SystemClock

CONFIG = """
limits:
  relay_response_timeout: 10s
  relay_accept_timeout: 10s
  max_listeners_per_hybrid_connection: 2
  max_relayed: 20
authorization_rules:
  sender: {rights: [Send]}
  listener: {rights: [Listen]}
hybrid_connections:
  stock: {}
  open: {requires_client_authorization: false}
  shop/prices: {}
queues: {orders: {}}
"""


class ScriptedListener:
    """A control channel, driven by the test."""

    def __init__(self, relay: Served, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.relay = relay
        self.socket = socket

    async def reported(self) -> dict[str, Any]:
        """What the next text message says."""
        message = await self.socket.receive(timeout=10)
        assert message.type is aiohttp.WSMsgType.TEXT, message
        return json.loads(message.data)

    async def body(self) -> bytes:
        message = await self.socket.receive(timeout=10)
        assert message.type is aiohttp.WSMsgType.BINARY, message
        return message.data

    async def closed(self) -> tuple[int, str]:
        """Status and reason of the close frame that comes."""
        message = await self.socket.receive(timeout=10)
        assert message.type is aiohttp.WSMsgType.CLOSE, message
        return message.data, message.extra

    async def answer(self, request: dict[str, Any], body: bytes = b"", **more: Any) -> None:
        """Answer a request over the control channel."""
        reported = {"requestId": request["id"], "statusCode": 200, "body": bool(body), **more}
        await self.socket.send_json({"response": reported})
        if body:
            await self.socket.send_bytes(body)

    async def meet(self, address: str, **options: Any) -> aiohttp.ClientWebSocketResponse:
        """Connect to an address."""
        return await self.relay.http.ws_connect(address, autoping=False, max_msg_size=0, **options)


class Served:
    """The namespace, and a client."""

    def __init__(self, server: Server, http: aiohttp.ClientSession, data: Path) -> None:
        self.server = server
        self.http = http
        self.host = f"127.0.0.1:{server.ports['http']}"
        self.keyring = Keyring.open(data / "keys.json", SystemClock())
        assert server.namespace is not None
        self.namespace = server.namespace
        self.relay = server.namespace.relay

    def token(self, rule: str = "RootManageSharedAccessKey", path: str = "", seconds: float = 600) -> str:
        key = next(each.primary_key for each in self.keyring.rules if each.key_name == rule)
        return make_token(f"http://{self.host}/{path}", rule, key, int(SystemClock().wall_ms() + seconds * 1000))

    def address(self, path: str, action: str, scheme: str = "ws") -> str:
        mark = "&" if "?" in path else "?"
        return f"{scheme}://{self.host}/$hc/{path}{mark}sb-hc-action={action}"

    async def listen(self, name: str = "stock", token: str | None = None, **options: Any) -> ScriptedListener:
        headers = {"ServiceBusAuthorization": token or self.token("listener")}
        socket = await self.http.ws_connect(self.address(name, "listen"), headers=headers, **options)
        return ScriptedListener(self, socket)

    def connect(self, path: str = "stock", **options: Any) -> asyncio.Task[aiohttp.ClientWebSocketResponse]:
        headers = {"ServiceBusAuthorization": self.token("sender"), **options.pop("headers", {})}

        async def connected() -> aiohttp.ClientWebSocketResponse:
            return await self.http.ws_connect(
                self.address(path, "connect"), headers=headers, autoping=False, max_msg_size=0, **options
            )

        return asyncio.create_task(connected())

    async def request(
        self, path: str = "stock", method: str = "GET", **options: Any
    ) -> tuple[int, bytes, aiohttp.ClientResponse]:
        headers = {"ServiceBusAuthorization": self.token("sender"), **options.pop("headers", {})}
        async with self.http.request(method, f"http://{self.host}/{path}", headers=headers, **options) as answer:
            return answer.status, await answer.read(), answer

    def begin(self, path: str = "stock", method: str = "GET", **options: Any) -> asyncio.Task[Any]:
        return asyncio.create_task(self.request(path, method, **options))


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    config = tmp_path / "namespace.yaml"
    config.write_text(CONFIG)
    data = tmp_path / "data"
    server = Server(Options(data, config, port=0, tls_port=0, http_port=0))
    await server.start()
    try:
        async with aiohttp.ClientSession() as http:
            yield Served(server, http, data)
    finally:
        with contextlib.suppress(asyncio.CancelledError):
            await server.stop()
