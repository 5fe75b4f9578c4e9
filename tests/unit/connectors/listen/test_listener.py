"""The HTTP server of listeners, on a socket of this machine."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path

import pytest

from isthmus.connectors.http.mapping import to_messages
from isthmus.connectors.listen.door import Door
from isthmus.connectors.listen.listener import enter
from isthmus.connectors.listen.option import ListenOptions

OPTIONS = ListenOptions(
    host="127.0.0.1",
    port=0,
    entity="hook",
    spool=Path("spool"),
    auth="none",
    secret="",
    signature="standard",
    certificate_file="",
    key_file="",
    max_body_bytes=1 << 20,
    spool_bytes=1 << 30,
)
HEAD = b"POST /hook HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\n"


class Store:
    """Has at once what it is given."""

    is_full = False

    def put(self, messages: Sequence[bytes]) -> Future[None]:
        done: Future[None] = Future()
        done.set_result(None)
        return done


@pytest.fixture(name="sender")
def _sender() -> Iterator[socket.socket]:
    entry = enter(OPTIONS, Door(OPTIONS, secret=lambda: "", read=to_messages, store=Store(), wall=lambda: 0.0))
    with socket.create_connection(("127.0.0.1", entry.port), timeout=10.0) as made:
        yield made
    entry.leave()


def test_i3_a_sender_that_asks_before_it_sends_a_body_is_answered(sender: socket.socket) -> None:
    """One that waits for the answer would wait permanently, and so would the listener for the body."""
    sender.sendall(HEAD + b"Expect: 100-continue\r\nContent-Length: 5\r\n\r\n")
    with sender.makefile("rb") as answers:
        assert answers.readline() == b"HTTP/1.1 100 Continue\r\n"
        assert answers.readline() == b"\r\n"
        sender.sendall(b"hello")
        assert answers.readline() == b"HTTP/1.1 200 OK\r\n"


def test_i2_a_sender_that_asks_whether_a_large_body_is_taken_is_told_so(sender: socket.socket) -> None:
    sender.sendall(HEAD + b"Expect: 100-continue\r\nContent-Length: 5000000\r\n\r\n")
    with sender.makefile("rb") as answers:
        assert answers.readline().startswith(b"HTTP/1.1 413 ")
