"""isthmus.unsent."""

from __future__ import annotations

import socket
import time

import pytest

from isthmus.unsent import delivered_bytes, received_bytes, unsent_bytes


def test_bytes_that_the_other_end_has_not_read_are_unsent() -> None:
    mine, other = socket.socketpair()
    with mine, other:
        assert unsent_bytes(mine) == 0
        mine.sendall(bytes(1000))
        assert unsent_bytes(mine) >= 1000
        assert len(other.recv(2000)) == 1000
        assert unsent_bytes(mine) == 0


def test_of_a_closed_socket_none_are_known() -> None:
    mine, other = socket.socketpair()
    mine.close()
    other.close()
    assert unsent_bytes(mine) is None


@pytest.mark.skipif(not hasattr(socket, "TCP_INFO"), reason="only Linux reports them")
def test_bytes_that_the_remote_machine_has_acknowledged_are_delivered() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as mine:
        before = delivered_bytes(mine)
        mine.sendall(bytes(100_000))
        limit = time.monotonic() + 10
        while delivered_bytes(mine) - before < 100_000:
            assert time.monotonic() < limit, delivered_bytes(mine) - before
    assert delivered_bytes(mine) == 0


def test_of_other_sockets_no_delivered_bytes_are_known() -> None:
    mine, other = socket.socketpair()
    with mine, other:
        mine.sendall(bytes(1000))
        assert delivered_bytes(mine) == 0
    assert delivered_bytes(None) == 0


@pytest.mark.skipif(not hasattr(socket, "TCP_INFO"), reason="only Linux reports them")
def test_bytes_that_have_come_count_before_they_are_read() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as mine:
        theirs, _ = server.accept()
        with theirs:
            before = received_bytes(mine)
            theirs.sendall(bytes(10_000))
            limit = time.monotonic() + 10
            while received_bytes(mine) - before < 10_000:
                assert time.monotonic() < limit, received_bytes(mine) - before
