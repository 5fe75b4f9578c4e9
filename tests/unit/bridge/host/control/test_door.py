import logging
import select
import socket
from collections.abc import Iterator

import pytest

from isthmus.bridge.host.control.door import GRACE_SECONDS, GUESTS, HANDSHAKE_SECONDS, Door
from isthmus.bridge.host.control.handshake import ClientHandshake, ControlError

KEY = "the key of the run"


@pytest.fixture
def door() -> Iterator[Door]:
    opened = Door("127.0.0.1", 0, KEY)
    yield opened
    opened.close()


def knock(door: Door) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", door.port), 10.0)
    sock.settimeout(10.0)
    return sock


def service(door: Door, now: float) -> list[socket.socket]:
    """Until nothing is ready."""
    passed = []
    while True:
        poll = select.poll()
        for descriptor, interest in door.descriptors(now):
            poll.register(descriptor, interest)
        ready = dict(poll.poll(20))
        passed += door.service(ready, now)
        if not ready:
            return passed


def is_cut_off(sock: socket.socket) -> bool:
    sock.setblocking(False)
    try:
        return sock.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


def test_who_has_the_key_is_let_through_with_what_it_sent_behind_its_proof(door: Door) -> None:
    client, sock = ClientHandshake(KEY), knock(door)
    sock.sendall(client.greeting())
    assert service(door, 0.0) == []
    proof = client.receive(sock.recv(client.needed, socket.MSG_WAITALL))
    sock.sendall(proof + b"a frame")
    (passed,) = service(door, 0.0)
    assert passed.recv(100) == b"a frame"
    assert door.deadline(0.0) == float("inf")
    passed.close()
    sock.close()


def test_i1_garbage_and_wrong_keys_are_cut_off_and_nothing_of_them_is_logged(
    door: Door, caplog: pytest.LogCaptureFixture
) -> None:
    garbage = knock(door)
    garbage.sendall(b"GET / HTTP/1.1\r\nAuthorization: secret\r\n\r\n" * 100)
    assert service(door, 0.0) == []
    assert is_cut_off(garbage)
    client, wrong = ClientHandshake(KEY), knock(door)
    wrong.sendall(client.greeting())
    service(door, 100.0)
    wrong.recv(client.needed, socket.MSG_WAITALL)
    wrong.sendall(bytes(32))
    assert service(door, 100.0) == []
    assert is_cut_off(wrong)
    assert "127.0.0.1" in caplog.text
    assert "another key" in caplog.text
    assert "secret" not in caplog.text
    assert KEY not in caplog.text
    for each in (garbage, wrong):
        each.close()


def test_i2_a_half_open_connection_is_cut_off_in_time(door: Door) -> None:
    silent = knock(door)
    slow = knock(door)
    slow.sendall(ClientHandshake(KEY).greeting()[:-1])
    assert service(door, 0.0) == []
    assert door.deadline(0.0) == HANDSHAKE_SECONDS
    service(door, HANDSHAKE_SECONDS - 0.1)
    assert not is_cut_off(silent)
    service(door, HANDSHAKE_SECONDS)
    assert is_cut_off(silent)
    assert is_cut_off(slow)
    silent.close()
    slow.close()


def test_i2_many_who_say_nothing_keep_no_client_out(door: Door) -> None:
    silent = [knock(door) for _ in range(GUESTS)]
    service(door, 0.0)
    client, sock = ClientHandshake(KEY), knock(door)
    sock.sendall(client.greeting())
    service(door, 0.0)
    assert len(door.descriptors(0.0)) == GUESTS, "the listener waits, without being polled"
    assert door.deadline(0.0) == GRACE_SECONDS
    service(door, GRACE_SECONDS)
    sock.sendall(client.receive(sock.recv(client.needed, socket.MSG_WAITALL)))
    (passed,) = service(door, GRACE_SECONDS)
    assert [is_cut_off(each) for each in silent] == [True] + [False] * (GUESTS - 1)
    for each in (*silent, passed, sock):
        each.close()


def test_who_goes_away_in_its_handshake_leaves_nothing(door: Door, caplog: pytest.LogCaptureFixture) -> None:
    knock(door).close()
    service(door, 0.0)
    assert len(door.descriptors(0.0)) == 1
    assert caplog.text == ""


def test_i3_refusals_are_logged_in_one_line_in_ten_seconds(door: Door, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    for now in (0.0, 1.0, 2.0, 10.0):
        with knock(door) as garbage:
            garbage.sendall(bytes(40))
            service(door, now)
    assert len(caplog.records) == 2
    assert "2 more" in caplog.records[1].getMessage()


def test_a_port_that_is_taken_says_what_to_do(door: Door) -> None:
    with pytest.raises(ControlError, match="control address"):
        Door("127.0.0.1", door.port, KEY)
