from __future__ import annotations

import asyncio
import contextlib
import json

import aiohttp
import pytest

from isthmus.broker.security.keyring import ROOT_KEY_NAME, Keyring
from isthmus.broker.security.sas import make_token
from isthmus.broker.server import Options, Server
from isthmus.clock import SystemClock

CONFIG = """
hybrid_connections:
  open: {requires_client_authorization: false}
"""


@pytest.fixture
async def port(tmp_path):
    config = tmp_path / "namespace.yaml"
    config.write_text(CONFIG)
    server = Server(Options(tmp_path / "data", config, port=0, tls_port=0, http_port=0))
    await server.start()
    yield server.ports["http"]
    with contextlib.suppress(asyncio.CancelledError):
        await server.stop()


@contextlib.asynccontextmanager
async def listener(port, token):
    """A listener that answers every request with 200 and nothing."""
    url = f"http://127.0.0.1:{port}/$hc/open?sb-hc-action=listen"
    async with (
        aiohttp.ClientSession() as http,
        http.ws_connect(url, headers={"ServiceBusAuthorization": token}) as socket,
    ):

        async def answer():
            async for message in socket:
                request = json.loads(message.data)["request"]
                await socket.send_json({"response": {"requestId": request["id"], "statusCode": 200}})

        answering = asyncio.create_task(answer())
        yield
        answering.cancel()


@pytest.mark.parametrize(
    ("path", "has_token", "status", "goes_on"),
    [
        ("/health", False, b"200", False),
        ("/orders", False, b"401", False),
        ("/$Resources/queues", True, b"200", True),
        ("/open/x", False, b"200", True),
    ],
)
async def test_a_client_without_a_token_has_one_request_on_a_connection_i1(
    tmp_path, port, path, has_token, status, goes_on
):
    key = Keyring.open(tmp_path / "data" / "keys.json", SystemClock()).rules[0].primary_key
    token = make_token("sb://localhost/", ROOT_KEY_NAME, key, int(SystemClock().wall_ms()) + 600_000)
    head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\n" + (f"Authorization: {token}\r\n" if has_token else "")
    async with asyncio.timeout(10), listener(port, token):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(2 if goes_on else 1):
            writer.write(head.encode() + b"\r\n")
            answer = await reader.readuntil(b"\r\n\r\n")
            assert answer.split()[1] == status
            assert (b"\r\nConnection: close\r\n" in answer) is not goes_on
            await reader.readexactly(int(answer.lower().partition(b"content-length: ")[2].split()[0]))
        if not goes_on:
            assert await reader.read() == b""
        writer.close()
