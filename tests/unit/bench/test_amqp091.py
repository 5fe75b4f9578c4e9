from __future__ import annotations

import socket
import struct
import threading

import pytest

from isthmus.bench.peer.amqp091 import Channel091
from isthmus.errors import ConnectionLostError, ProtocolError


def frame(method: tuple[int, int], arguments: bytes = b"", channel: int = 1) -> bytes:
    payload = struct.pack(">HH", *method) + arguments
    return struct.pack(">BHI", 1, channel, len(payload)) + payload + b"\xce"


HANDSHAKE = (
    frame((10, 10), b"\0\x09" + struct.pack(">III", 0, 0, 0), 0)
    + frame((10, 30), struct.pack(">HIH", 0, 131072, 60), 0)
    + frame((10, 41), b"\0", 0)
    + frame((20, 11), struct.pack(">I", 0))
)


def node(answers: bytes) -> tuple[int, threading.Thread]:
    """A node that sends all its answers at once and then reads until the other side disconnects."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = listener.accept()
        with connection, listener:
            connection.sendall(HANDSHAKE + answers)
            while connection.recv(65536):
                pass

    thread = threading.Thread(target=serve)
    thread.start()
    return listener.getsockname()[1], thread


def test_counts_and_confirms() -> None:
    count = frame((50, 11), b"\x01q" + struct.pack(">II", 7, 0))
    port, thread = node(count + frame((85, 11)) + frame((60, 80), struct.pack(">QB", 2, 1)))
    channel = Channel091(port)
    assert channel.count("q") == 7
    channel.confirm()
    channel.publish("q", [b"a", b"b"])
    channel.flush()
    channel.close()
    thread.join(10)


def test_a_refused_message_is_an_error() -> None:
    port, thread = node(frame((85, 11)) + frame((60, 120), struct.pack(">QB", 1, 0)))
    channel = Channel091(port)
    channel.confirm()
    with pytest.raises(ProtocolError, match="refused"):
        channel.publish("q", [b"a"], window=0)
    channel.close()
    thread.join(10)


def test_a_close_is_reported_with_its_reason() -> None:
    port, thread = node(frame((20, 40), struct.pack(">H", 404) + b"\x09NOT_FOUND" + struct.pack(">HH", 0, 0)))
    channel = Channel091(port)
    with pytest.raises(ConnectionLostError, match="NOT_FOUND"):
        channel.count("q")
    channel.close()
    thread.join(10)


def test_no_node_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(ConnectionLostError):
        Channel091(port)
