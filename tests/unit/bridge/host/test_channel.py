import socket
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from isthmus.bridge.frame import Kind
from isthmus.bridge.host.channel import (
    Channel,
    ChannelError,
    Claim,
    channel_path,
    dial,
    listen,
    private_directory,
    sweep,
)


def pair() -> tuple[Channel, Channel]:
    one, two = socket.socketpair()
    return Channel(one), Channel(two)


def test_the_last_report_is_read_though_there_is_no_reader_left() -> None:
    sink, reader = pair()
    sink.send(Kind.HELLO)  # stays unread
    sink.flush()
    reader.send(Kind.STOPPED, b"{}")
    reader.flush()
    reader.close()
    sink.send(Kind.FLUSHED, b"12345678")
    sink.flush()
    assert not sink.closed
    assert sink.receive() == [(Kind.STOPPED, b"{}")]
    sink.send(Kind.STATS)
    sink.flush()
    assert sink.receive() == []
    assert sink.closed
    sink.close()


def test_writing_never_blocks_and_order_is_kept_i1() -> None:
    sink, reader = pair()
    for number in range(2000):
        sink.send(Kind.STATS, number.to_bytes(4, "big") + bytes(1000))
        sink.flush()
    got: list[bytes] = []
    while len(got) < 2000:
        got += [payload[:4] for _, payload in reader.receive()]
        sink.flush()
    assert got == [number.to_bytes(4, "big") for number in range(2000)]
    sink.close()
    reader.close()


def test_whoever_dials_before_a_listener_attaches_finds_none(tmp_path: Path) -> None:
    path = tmp_path / "x.lease"
    assert dial(path) is None
    listener = listen(path)
    channel = dial(path)
    assert channel is not None
    channel.close()
    listener.close()


def test_the_directory_is_this_users_alone_i3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    directory = private_directory()
    assert directory.stat().st_mode & 0o777 == 0o700
    assert channel_path("query", 1).parent == directory
    assert channel_path("query", 1) != channel_path("query", 2)
    directory.chmod(0o750)
    with pytest.raises(ChannelError, match="alone"):
        private_directory()


def test_sockets_of_killed_processes_are_swept_away(monkeypatch: pytest.MonkeyPatch) -> None:
    with TemporaryDirectory() as short:  # a socket's path has at most 107 bytes
        monkeypatch.setattr("tempfile.tempdir", short)
        dead, alive = channel_path("dead"), channel_path("alive")
        listen(dead).close()
        listener = listen(alive)
        sweep()
        assert (dead.exists(), alive.exists()) == (False, True)
        with pytest.raises(BlockingIOError):
            listener.accept()  # no connection was tried to find out
        listener.discard()
        assert list(private_directory().iterdir()) == []


def test_a_socket_between_bind_and_listen_is_not_swept_away_i4(monkeypatch: pytest.MonkeyPatch) -> None:
    with TemporaryDirectory() as short:
        monkeypatch.setattr("tempfile.tempdir", short)
        path = channel_path("starting")
        claim = Claim(path)
        with socket.socket(socket.AF_UNIX) as sock:
            sweep()
            sock.bind(str(path))
            sweep()
            assert path.exists()
        claim.close()
        sweep()
        assert not path.exists()


def test_sockets_are_swept_away_after_kill_9_and_by_no_other_process_before_i4(monkeypatch: pytest.MonkeyPatch) -> None:
    with TemporaryDirectory() as short:
        monkeypatch.setattr("tempfile.tempdir", short)
        path = channel_path("victim")
        code = (
            "import pathlib, sys; from isthmus.bridge.host.channel import listen\n"
            "listener = listen(pathlib.Path(sys.argv[1])); print('listening', flush=True); sys.stdin.read()"
        )
        with subprocess.Popen(
            [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as victim:
            assert victim.stdout is not None
            assert victim.stdout.readline() == b"listening\n"
            sweep()
            assert path.exists()
            victim.kill()
        sweep()
        assert list(private_directory().iterdir()) == []


def test_a_name_that_its_process_forgot_is_taken_again_and_kept_from_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    with TemporaryDirectory() as short:
        monkeypatch.setattr("tempfile.tempdir", short)
        path = channel_path("control")
        forgotten = listen(path)
        listener = listen(path)
        forgotten.discard()
        sweep()
        channel = dial(path)
        assert channel is not None
        accepted, _ = listener.accept()
        accepted.close()
        channel.close()
        listener.discard()
        assert not path.exists()


def test_a_path_that_is_too_long_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ChannelError, match="TMPDIR"):
        listen(tmp_path / ("x" * 120))


def test_a_frame_in_pieces_is_received_whole_i2() -> None:
    one, two = socket.socketpair()
    channel = Channel(two)
    for piece in (bytes([Kind.HELLO]), (4).to_bytes(4, "little"), b"ab", b"c"):
        one.sendall(piece)
        assert channel.receive() == []
    one.sendall(b"d" + bytes([Kind.END]))
    assert channel.receive() == [(Kind.HELLO, b"abcd")]
    one.close()
    assert channel.receive() == []
    assert channel.closed
    channel.close()


def test_who_has_ended_writing_still_reads() -> None:
    sink, reader = pair()
    sink.send(Kind.END)
    sink.flush()
    sink.end_writing()
    assert reader.receive() == [(Kind.END, b"")]
    assert reader.receive() == []
    assert reader.closed
    one, two = socket.socketpair()
    ours, theirs = Channel(one), two
    ours.end_writing()
    assert theirs.recv(1) == b""
    theirs.sendall(bytes([Kind.HELLO]) + bytes(4))
    assert ours.receive() == [(Kind.HELLO, b"")]
    for each in (sink, reader, ours, theirs):
        each.close()


def test_bytes_that_are_no_frames_are_refused() -> None:
    one, two = socket.socketpair()
    channel = Channel(two)
    one.sendall(b"\xff" * 20)
    with pytest.raises(ChannelError):
        channel.receive()
    one.close()
    channel.close()
