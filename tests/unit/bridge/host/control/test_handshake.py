import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.bridge.host.control.handshake import (
    MAGIC,
    ClientHandshake,
    ControlError,
    ControlKeyError,
    NotControlError,
    ServerHandshake,
)

KEY = "the key of the run"


def test_two_ends_with_one_key_find_each_other() -> None:
    client, server = ClientHandshake(KEY), ServerHandshake(KEY)
    greeting = client.greeting()
    assert len(greeting) == server.needed
    challenge = server.receive(greeting)
    assert len(challenge) == client.needed
    proof = client.receive(challenge)
    assert (client.is_done, client.needed, server.is_done) == (True, 0, False)
    assert len(proof) == server.needed
    assert server.receive(proof) == b""
    assert (server.is_done, server.needed) == (True, 0)
    assert KEY.encode() not in greeting + challenge + proof


def test_i1_a_client_refuses_a_server_with_another_key() -> None:
    client = ClientHandshake(KEY)
    with pytest.raises(ControlKeyError):
        client.receive(ServerHandshake("another").receive(client.greeting()))
    assert not client.is_done


def test_i1_a_server_refuses_a_client_with_another_key() -> None:
    server = ServerHandshake(KEY)
    challenge = server.receive(ClientHandshake(KEY).greeting())
    with pytest.raises(ControlKeyError) as caught:
        server.receive(bytes(server.needed))
    assert not server.is_done
    assert KEY not in str(caught.value)
    assert challenge.hex() not in str(caught.value)


def test_i2_a_recorded_handshake_is_worth_nothing() -> None:
    client, server = ClientHandshake(KEY), ServerHandshake(KEY)
    greeting = client.greeting()
    proof = client.receive(server.receive(greeting))
    again = ServerHandshake(KEY)
    again.receive(greeting)
    with pytest.raises(ControlKeyError):
        again.receive(proof)


def test_i2_a_servers_own_proof_does_not_let_its_sender_in() -> None:
    """An attacker that sends back what the server sends, or uses the answers of one connection on another."""
    server = ServerHandshake(KEY)
    challenge = server.receive(ClientHandshake(KEY).greeting())
    with pytest.raises(ControlKeyError):
        server.receive(challenge[-server.needed :])
    client = ClientHandshake(KEY)
    greeting = client.greeting()
    with pytest.raises(ControlKeyError):
        client.receive(greeting + bytes(client.needed - len(greeting)))


@settings(max_examples=100, deadline=None)
@given(st.binary(min_size=40, max_size=40), st.binary(min_size=32, max_size=32))
def test_i1_no_bytes_let_anybody_into_a_server(greeting: bytes, proof: bytes) -> None:
    for first in (greeting, MAGIC + greeting[len(MAGIC) :]):
        server = ServerHandshake(KEY)
        try:
            server.receive(first)
        except NotControlError:
            assert not first.startswith(MAGIC)
            continue
        with pytest.raises(ControlKeyError):
            server.receive(proof)
        assert not server.is_done


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 8 * 72 - 1))
def test_i1_one_bit_that_differs_is_refused_by_the_client(bit: int) -> None:
    client = ClientHandshake(KEY)
    challenge = bytearray(ServerHandshake(KEY).receive(client.greeting()))
    challenge[bit // 8] ^= 1 << bit % 8
    with pytest.raises(ControlError):
        client.receive(bytes(challenge))
    assert not client.is_done
