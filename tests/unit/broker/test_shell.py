"""The socket below a peer: how it ends."""

from __future__ import annotations

import asyncio

import pytest

from isthmus.broker import shell
from isthmus.broker.shell import Shell


class Transport(asyncio.Transport):
    """A socket whose client reads nothing: what was written stays, and so does the connection until it is aborted."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closing = self.aborted = False

    def set_write_buffer_limits(self, high=None, low=None) -> None:
        pass

    def get_extra_info(self, name, default=None):
        return default

    def write(self, data) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return len(self.written)

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.aborted = True


@pytest.fixture
def open_shell(broker, monkeypatch):
    monkeypatch.setattr(shell, "CLOSE_SECONDS", 0.0)
    made, transport = Shell(broker.namespace), Transport()
    made.connection_made(transport)
    return made, transport


async def test_a_closed_connection_is_gone_soon_though_its_client_reads_nothing_i3(open_shell):
    made, transport = open_shell
    made.write(b"x" * 1000)
    assert made.unsent_bytes == 1000
    made.close()
    made.close()
    assert transport.closing
    assert not transport.aborted
    await asyncio.sleep(0.01)
    assert transport.aborted


async def test_one_that_has_ended_is_not_aborted_i3(open_shell):
    made, transport = open_shell
    made.close()
    made.connection_lost(None)
    await asyncio.sleep(0.01)
    assert not transport.aborted
    assert made.unsent_bytes == 0
