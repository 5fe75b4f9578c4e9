"""Faults of an address, and their texts."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from isthmus.bridge.frame import Kind
from isthmus.bridge.host.channel import Channel
from isthmus.bridge.host.control.client import (
    ControlError,
    ControlKeyError,
    NotControlError,
    dial_control,
    hang_up,
    split_address,
)
from isthmus.bridge.host.control.handshake import ServerHandshake

KEY = "the key of the run"


@contextmanager
def listening(serve: Callable[[socket.socket], None]) -> Iterator[str]:
    """A port whose first connection `serve` gets."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def run() -> None:
            sock, _ = listener.accept()
            with sock:
                serve(sock)

        thread = threading.Thread(target=run)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        thread.join(10.0)
        assert not thread.is_alive()


def test_a_blocked_port_is_reported_with_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    with pytest.raises(
        ControlError, match=r"cannot reach the driver at 127\.0\.0\.1:.*open the port.*spark\.driver\.host"
    ):
        dial_control(address, KEY, 10.0)


def test_a_wrong_key_is_reported_and_not_shown() -> None:
    def serve(sock: socket.socket) -> None:
        handshake = ServerHandshake("another key")
        sock.sendall(handshake.receive(sock.recv(handshake.needed, socket.MSG_WAITALL)))
        assert sock.recv(1) == b"", "no proof is sent to who has another key"

    with listening(serve) as address, pytest.raises(ControlKeyError, match="another run") as caught:
        dial_control(address, KEY, 10.0)
    assert not caught.value.retryable
    assert KEY not in str(caught.value)


@pytest.mark.parametrize(
    "answer",
    [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n" + bytes(100), b"AMQP\x00\x01\x00\x00", b"ISTHMUS\x01" + bytes(9)],
)
def test_what_is_no_control_port_is_reported(answer: bytes) -> None:
    def serve(sock: socket.socket) -> None:
        sock.recv(40, socket.MSG_WAITALL)
        sock.sendall(answer)

    with listening(serve) as address, pytest.raises(NotControlError, match="not an isthmus control port") as caught:
        dial_control(address, KEY, 10.0)
    assert caught.value.message.count(address) == 1


def test_a_port_that_says_nothing_is_reported_in_time() -> None:
    done = threading.Event()
    with listening(lambda sock: done.wait(10.0) and None) as address:  # type: ignore[func-returns-value]
        with pytest.raises(NotControlError, match="did not answer as an isthmus control port"):
            dial_control(address, KEY, 0.05)
        done.set()


@pytest.mark.parametrize("address", ["", "here", "here:", ":1", "here:0", "here:65536", "here:x", "here:²"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(ControlError, match="host:port"):
        dial_control(address, KEY, 10.0)


def test_addresses() -> None:
    assert split_address("driver.example:7000") == ("driver.example", 7000)
    assert split_address("[::1]:7000") == ("::1", 7000)


def test_i2_what_was_queued_before_the_end_arrives_though_something_is_unread() -> None:
    ours, theirs = socket.socketpair()
    reader, driver = Channel(ours), Channel(theirs)
    driver.send(Kind.GRANT, bytes(1 << 20))
    driver.flush()
    received: list[tuple[int, bytes]] = []

    def serve() -> None:
        theirs.setblocking(True)
        while not driver.closed:
            received.extend(driver.receive())
        driver.close()

    thread = threading.Thread(target=serve)
    for _ in range(20):
        reader.send(Kind.REPORT, bytes(1 << 16))
    reader.send(Kind.ENDED, b"{}")
    thread.start()
    hang_up(reader, 10.0)
    thread.join(10.0)
    assert (len(received), received[-1]) == (21, (Kind.ENDED, b"{}"))
    assert reader.fileno() == -1


def test_i2_a_driver_that_does_not_hang_up_is_not_waited_for_long() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        reader = Channel(ours)
        hang_up(reader, 0.01)
        assert reader.fileno() == -1
