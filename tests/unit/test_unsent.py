"""isthmus.unsent."""

from __future__ import annotations

import socket

from isthmus.unsent import unsent_bytes


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
