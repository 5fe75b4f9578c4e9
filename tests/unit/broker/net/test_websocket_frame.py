"""WebSocket frames of clients, whole and in pieces."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.broker.net.websocket_frame import CLOSE, FrameError, FrameReader, make_frame


def masked(data: bytes, opcode: int = 2, *, final: bool = True, mask: bytes = b"\x01\xf2\x03\x04") -> bytes:
    """A frame as a client writes it."""
    head = bytearray(make_frame(data, opcode)[: -len(data) or None])
    if not final:
        head[0] &= 0x7F
    head[1] |= 0x80
    return bytes(head) + mask + bytes(byte ^ mask[at % 4] for at, byte in enumerate(data))


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=6), st.data())
def test_the_stream_is_the_same_however_it_is_cut(messages: list[bytes], data: st.DataObject) -> None:
    wire = b""
    for message in messages:
        at = data.draw(st.integers(0, len(message)))
        wire += masked(message[:at], final=False) + masked(b"are you there", 9) + masked(message[at:], 0)
    reader, said = FrameReader(), []
    while wire:
        size = data.draw(st.integers(1, len(wire)))
        said.append(reader.feed(wire[:size]))
        wire = wire[size:]
        assert reader.kept_bytes <= 139
    assert b"".join(said) == b"".join(messages)
    assert reader.ping == b"are you there"


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65535, 65536, 200_000])
def test_all_lengths(size: int) -> None:
    data = os.urandom(size)
    assert FrameReader().feed(masked(data, mask=os.urandom(4))) == data


def test_a_fragment_that_never_ends_is_given_on_and_not_kept_i1() -> None:
    reader = FrameReader()
    head = masked(b"", final=False)[:1] + b"\xff" + (1 << 60).to_bytes(8, "big") + b"\0\0\0\0"
    assert reader.feed(head) == b""
    for _ in range(50):
        assert reader.feed(b"x" * 100_000) == b"x" * 100_000
        assert reader.kept_bytes == 0


@pytest.mark.parametrize(
    ("wire", "status"),
    [
        (make_frame(b"not masked"), 1002),
        (b"\xc2\x80\0\0\0\0", 1002),
        (masked(b"text", 1), 1003),
        (masked(b"x", 3), 1003),
        (masked(b"x", 0), 1002),
        (masked(b"x", final=False) + masked(b"y"), 1002),
        (masked(b"x" * 126, 9), 1002),
        (masked(b"x", 8, final=False), 1002),
        (b"\x82\xff" + b"\xff" * 12, 1002),
    ],
)
def test_what_is_forbidden_is_refused_i2(wire: bytes, status: int) -> None:
    with pytest.raises(FrameError) as caught:
        FrameReader().feed(wire)
    assert caught.value.status == status


def test_nothing_is_read_after_a_close() -> None:
    reader = FrameReader()
    assert reader.feed(masked(b"a") + masked(b"\x03\xe8", CLOSE) + masked(b"b")) == b"a"
    assert reader.is_closed
