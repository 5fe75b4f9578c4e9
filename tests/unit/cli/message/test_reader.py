"""isthmus.cli.message.reader."""

from __future__ import annotations

import os
import pty
import socket
import termios
import threading
import time
from pathlib import Path

import pytest

from isthmus.cli.message import reader
from isthmus.cli.message.reader import hand_over, wait_read


def test_what_was_written_to_a_pipe_has_been_read() -> None:
    reading, writing = os.pipe()
    with open(writing, "wb", buffering=0) as pipe:
        pipe.write(b"message\n")
        taking = threading.Timer(0.2, lambda: os.read(reading, 100))
        began = time.monotonic()
        taking.start()
        assert wait_read(pipe)
        assert time.monotonic() - began >= 0.2
        taking.join()
        os.close(reading)
        assert wait_read(pipe)  # all was read before its reader ended


def test_a_reader_that_has_ended_and_left_something_is_told() -> None:
    """As `head` does, which has seen enough."""
    reading, writing = os.pipe()
    with open(writing, "wb", buffering=0) as pipe:
        pipe.write(b"message\n")
        ending = threading.Timer(0.2, lambda: os.close(reading))
        ending.start()
        with pytest.raises(BrokenPipeError):
            wait_read(pipe)
        ending.join()


def test_a_request_to_end_ends_the_wait_and_tells_that_something_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_STOP_SECONDS", 0.1)
    reading, writing = os.pipe()
    with open(writing, "wb", buffering=0) as pipe:
        pipe.write(b"message\n")
        assert not wait_read(pipe, lambda: True)
    os.close(reading)


def test_a_reader_that_reads_is_waited_for_after_a_request_to_end() -> None:
    reading, writing = os.pipe()
    with open(writing, "wb", buffering=0) as pipe:
        pipe.write(b"message\n")
        taking = threading.Timer(0.1, lambda: os.read(reading, 100))
        taking.start()
        assert wait_read(pipe, lambda: True)
        taking.join()
    os.close(reading)


def test_a_reader_that_the_same_ctrl_c_has_ended_is_told() -> None:
    """It has left the message, which must not be removed."""
    reading, writing = os.pipe()
    with open(writing, "wb", buffering=0) as pipe:
        pipe.write(b"message\n")
        ending = threading.Timer(0.1, lambda: os.close(reading))
        ending.start()
        with pytest.raises(BrokenPipeError):
            wait_read(pipe, lambda: True)
        ending.join()


TEXT = "ä" * 100_000 + "\n"


def test_i1_within_a_text_larger_than_the_pipe_the_caller_is_called_back() -> None:
    reading, writing = os.pipe()
    taken: list[bytes] = []

    def take() -> None:
        with open(reading, "rb") as pipe:
            taken.append(pipe.read())

    taking = threading.Thread(target=take)

    def meanwhile() -> bool:
        if taking.ident is None:
            taking.start()
        return False

    with open(writing, "w", encoding="utf-8") as pipe:
        assert hand_over(pipe, TEXT, meanwhile)
    taking.join()
    assert taken == [TEXT.encode()]


def test_i1_a_request_to_end_ends_the_writing_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_STOP_SECONDS", 0.05)
    reading, writing = os.pipe()
    with open(writing, "w", encoding="utf-8") as pipe:
        assert not hand_over(pipe, TEXT, lambda: True)
    os.close(reading)


def test_i1_a_reader_that_ends_within_a_text_is_told() -> None:
    reading, writing = os.pipe()
    with open(writing, "w", encoding="utf-8") as pipe, pytest.raises(BrokenPipeError):
        hand_over(pipe, TEXT, lambda: bool(os.close(reading)))


def test_what_was_written_to_a_socket_has_been_read() -> None:
    """Node starts a program with one as its standard output."""
    near, far = socket.socketpair()
    read: list[bytes] = []

    def meanwhile() -> bool:
        read.append(far.recv(10))
        return False

    with near, far, open(near.detach(), "w", encoding="utf-8") as stream:
        assert hand_over(stream, "message\n" * 3, meanwhile)
        assert b"".join(read) == b"message\n" * 3
        far.close()
        assert wait_read(stream)  # all was read before its reader ended


def test_a_reader_of_a_socket_that_has_ended_and_left_something_is_told() -> None:
    near, far = socket.socketpair()
    with near, far, open(near.detach(), "w", encoding="utf-8") as stream, pytest.raises(BrokenPipeError):
        hand_over(stream, "message\n", lambda: bool(far.close()))


def test_i1_within_a_text_larger_than_a_socket_the_caller_is_called_back() -> None:
    near, far = socket.socketpair()
    taken: list[bytes] = []

    def meanwhile() -> bool:
        taken.append(far.recv(1 << 16))
        return False

    with near, far, open(near.detach(), "w", encoding="utf-8") as stream:
        assert hand_over(stream, TEXT * 3, meanwhile)
    assert b"".join(taken) == TEXT.encode() * 3


def test_i1_while_a_terminal_pauses_the_caller_is_called_back() -> None:
    """As after Ctrl-S, or while text is selected in some terminals."""
    near, far = pty.openpty()
    termios.tcflow(far, termios.TCOOFF)
    guard = threading.Timer(5.0, termios.tcflow, (far, termios.TCOON))  # else a call that blocks would never end
    guard.start()
    calls: list[None] = []

    def meanwhile() -> bool:
        calls.append(None)
        termios.tcflow(far, termios.TCOON)
        return False

    with open(far, "w", encoding="utf-8") as stream:
        assert hand_over(stream, "message\n", meanwhile)
        assert calls
        assert os.read(near, 100) == b"message\r\n"
        guard.cancel()
    os.close(near)


def test_files_have_no_reader(tmp_path: Path) -> None:
    with (tmp_path / "out").open("w") as file:
        file.write("message\n")
        file.flush()
        assert wait_read(file)
    assert wait_read(None)
