"""isthmus.client.relay.message: a connection that is accepted."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest

from isthmus.client.relay.message import RelayConnection
from isthmus.errors import ConnectionLostError


class Socket:
    """What a relay connects a listener with."""

    protocol = None

    def __init__(self) -> None:
        self.sent: list[str] = []

    async def send_str(self, text: str) -> None:
        self.sent.append(text)

    async def receive(self) -> Any:
        return aiohttp.WSMessage(aiohttp.WSMsgType.TEXT, "answer", None)


async def test_a_handler_that_sends_and_receives_at_once_takes_the_connection_once() -> None:
    """A relay lets a listener meet a requester once: the second attempt is refused."""
    sockets: list[Socket] = []

    async def join(subprotocol: str) -> Any:
        await asyncio.sleep(0)
        sockets.append(Socket())
        return sockets[-1]

    connection = RelayConnection(join=join)
    _, received = await asyncio.gather(connection.send("question"), connection.receive())
    assert received == "answer"
    assert [each.sent for each in sockets] == [["question"]]


@pytest.mark.parametrize("error", [aiohttp.ClientConnectionError("gone"), TimeoutError("gone"), OSError("gone")])
async def test_a_requester_that_has_left_is_a_connection_that_is_lost(error: Exception) -> None:
    """Otherwise it looks like a fault of the handler."""

    async def join(subprotocol: str) -> Any:
        raise error

    connection = RelayConnection(join=join)
    with pytest.raises(ConnectionLostError, match="gone"):
        await connection.receive()
    assert not connection.is_accepted
