"""A credential for asyncio that threads ask for tokens."""

from __future__ import annotations

import asyncio

from isthmus.client.receive.async_credential import for_threads


class _Credential:
    async def get_token(self, *scopes: str) -> str:
        await asyncio.sleep(0)
        return f"token for {scopes[0]}"


class _Threaded:
    def get_token(self, *scopes: str) -> str:
        return scopes[0]


async def test_a_thread_gets_a_token_from_the_loop() -> None:
    endpoint = for_threads(("orders.servicebus.windows.net", _Credential()), asyncio.get_running_loop())
    host, credential = endpoint.resolve()
    assert host == "orders.servicebus.windows.net"
    assert await asyncio.to_thread(credential.get_token, "scope") == "token for scope"


async def test_other_endpoints_are_left_as_they_are() -> None:
    loop = asyncio.get_running_loop()
    credential = _Threaded()
    assert for_threads(("host", credential), loop).resolve() == ("host", credential)
    connection = "Endpoint=sb://localhost;SharedAccessKeyName=k;SharedAccessKey=v"
    assert for_threads(connection, loop).resolve() == connection
