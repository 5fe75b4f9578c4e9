import socket

import pytest

from isthmus.bridge.frame import Kind
from isthmus.connectors.servicebus import channel as frames
from isthmus.connectors.servicebus.channel import Channel, ChannelError


def pair() -> tuple[Channel, Channel]:
    one, two = socket.socketpair()
    return Channel(one), Channel(two)


def test_runs_are_merged_and_keep_their_place_among_frames_i1() -> None:
    sink, reader = pair()
    sink.settle_all(range(1, 5))
    sink.settle_all([5, 6, 9])
    sink.send(frames.FLUSHED, b"12345678")
    sink.settle(10, 11)
    sink.flush()
    received = reader.receive()
    assert [kind for kind, _ in received] == [frames.SETTLE, frames.FLUSHED, frames.SETTLE]
    assert frames.unpack_pairs(received[0][1]) == [(1, 6), (9, 9)]
    assert frames.unpack_pairs(received[2][1]) == [(10, 11)]
    sink.close()
    assert reader.receive() == []
    assert reader.closed
    reader.close()


def test_frames_that_wait_together_are_written_together() -> None:
    """Each write may wake the other end."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        channel = Channel(ours)
        channel.settle(1, 2)
        channel.send(frames.FLUSHED, b"12345678")
        channel.send(frames.ALIVE)
        channel.flush()
        theirs.setblocking(False)
        assert len(theirs.recv(1 << 16)) == 5 + 16 + 5 + 8 + 5
        with pytest.raises(BlockingIOError):
            theirs.recv(1)
        channel.close()


def test_frames_of_other_channels_are_refused() -> None:
    one, two = socket.socketpair()
    channel = Channel(two)
    one.sendall(bytes([Kind.ASSIGN]) + bytes(4))
    with pytest.raises(ChannelError):
        channel.receive()
    one.close()
    channel.close()
