"""Frames as pieces: any cut of the bytes leads to the same frames."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.broker.net.websocket_frame import FrameError
from isthmus.broker.relay.frame import BINARY, CLOSE, CONTINUATION, PING, PONG, TEXT, PieceReader

MASK = b"\x01\x02\x03\x04"


def frame(opcode: int, payload: bytes, final: bool = True, mask: bytes = MASK, first: int = 0) -> bytes:
    """A client's frame."""
    length = len(payload)
    head = bytes([opcode | (0x80 if final else 0) | first])
    if length < 126:
        head += bytes([0x80 | length])
    elif length < 1 << 16:
        head += bytes([0x80 | 126]) + length.to_bytes(2, "big")
    else:
        head += bytes([0x80 | 127]) + length.to_bytes(8, "big")
    return head + mask + bytes(byte ^ mask[at % 4] for at, byte in enumerate(payload))


STREAM = [
    (TEXT, b"hello", True),
    (BINARY, b"x" * 300, False),
    (PING, b"there?", True),
    (CONTINUATION, b"", False),
    (CONTINUATION, b"y" * 5, True),
    (BINARY, b"", True),
    (PONG, b"", True),
    (BINARY, b"z" * 70_000, True),
    (CLOSE, b"\x03\xe8bye", True),
]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(min_value=1, max_value=4000), min_size=1, max_size=40))
def test_frames_come_whole_however_the_bytes_are_cut_i2(cuts: list[int]) -> None:
    data = b"".join(frame(opcode, payload, final) for opcode, payload, final in STREAM) + b"more"
    reader = PieceReader()
    found: list[list] = []
    at = 0
    for cut in [*cuts, len(data)]:
        for piece in reader.feed(data[at : at + cut]):
            if piece.length is not None:
                found.append([piece.opcode, b"", piece.is_final, piece.length])
            found[-1][1] += piece.data
            assert piece.ends_frame == (len(found[-1][1]) == found[-1][3])
        assert reader.kept_bytes <= 139
        at += cut
    assert [tuple(each[:3]) for each in found] == STREAM


def test_fragments_belong_to_their_message() -> None:
    reader = PieceReader()
    data = frame(TEXT, b"a", False) + frame(PING, b"") + frame(CONTINUATION, b"b")
    assert [(piece.kind, piece.ends_message) for piece in reader.feed(data)] == [
        (TEXT, False),
        (PING, True),
        (TEXT, True),
    ]


@pytest.mark.parametrize(
    "data",
    [
        frame(TEXT, b"a", first=0x40),
        b"\x81\x01abcdef",  # no mask
        frame(0x3, b""),
        frame(CONTINUATION, b"a"),
        frame(TEXT, b"a", False) + frame(TEXT, b"b"),
        frame(PING, b"a", False),
        frame(PING, b"a" * 126),
        frame(CLOSE, b"a"),
        b"\x82\xff" + b"\xff" * 8 + MASK,
    ],
)
def test_forbidden_frames_are_refused_i3(data: bytes) -> None:
    with pytest.raises(FrameError):
        PieceReader().feed(data)
