"""One WebSocket of the relay, above a transport that the test reads."""

from __future__ import annotations

import asyncio
from unittest.mock import Mock

from isthmus.broker.relay.exchange import Exchange, Rendezvous
from isthmus.broker.relay.socket import RelaySocket

PING = b"\x89\x81\0\0\0\0x"
PONG = b"\x8a\x01x"


async def test_a_client_that_does_not_read_gets_no_answers_to_its_pings() -> None:
    transport = Mock(asyncio.Transport)
    transport.is_closing.return_value = False
    transport.get_extra_info.return_value = None
    socket = RelaySocket(asyncio.Protocol())
    socket.connection_made(transport)
    socket.start(Rendezvous(Exchange("1"), socket))
    socket.data_received(PING * 2)
    socket.pause_writing()
    socket.data_received(PING * 1000)
    socket.resume_writing()
    socket.data_received(PING)
    assert [call.args[0] for call in transport.write.call_args_list] == [PONG] * 3
