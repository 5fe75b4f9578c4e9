import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.broker.net.sniff import ENOUGH_BYTES, Speech, recognise

LINES = [
    (b"AMQP\x03\x01\x00\x00", Speech.AMQP),
    (b"AMQP\x00\x01\x00\x00", Speech.AMQP),
    (b"\x16\x03\x01\x02\x00", Speech.TLS),
    (b"GET /q HTTP/1.1\r\n", Speech.HTTP),
    (b"PUT /q HTTP/1.1\r\n", Speech.HTTP),
    (b"POST /q HTTP/1.1\r\n", Speech.HTTP),
    (b"DELETE /q HTTP/1.1\r\n", Speech.HTTP),
    (b"SSH-2.0-x\r\n", Speech.UNKNOWN),
    (b"\x15\x03\x01", Speech.UNKNOWN),
    (b"GETTING ", Speech.UNKNOWN),
]


@pytest.mark.parametrize(("first_bytes", "speech"), LINES)
def test_a_protocol_is_recognised_by_its_first_bytes(first_bytes, speech):
    assert recognise(first_bytes) is speech


@pytest.mark.parametrize(("first_bytes", "speech"), LINES)
def test_a_prefix_is_never_refused_i2(first_bytes, speech):
    for length in range(len(first_bytes)):
        assert recognise(first_bytes[:length]) in ({None, speech})


@given(st.binary(min_size=ENOUGH_BYTES, max_size=64))
def test_enough_bytes_always_decide_i1(first_bytes):
    assert recognise(first_bytes) is not None
