"""isthmus.cli.message.reader."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from isthmus.cli.message.reader import wait_read


def test_what_was_written_to_a_pipe_has_been_read() -> None:
    reading, writing = os.pipe()
    with open(writing, "wb", buffering=0) as pipe:
        pipe.write(b"message\n")
        reader = threading.Timer(0.2, lambda: os.read(reading, 100))
        reader.start()
        began = time.monotonic()
        wait_read(pipe)
        assert time.monotonic() - began >= 0.2
        reader.join()
        os.close(reading)
        wait_read(pipe)  # all was read before its reader ended


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


def test_a_request_to_end_ends_the_wait() -> None:
    reading, writing = os.pipe()
    with open(writing, "wb", buffering=0) as pipe:
        pipe.write(b"message\n")
        wait_read(pipe, lambda: True)
    os.close(reading)


def test_files_have_no_reader(tmp_path: Path) -> None:
    with (tmp_path / "out").open("w") as file:
        file.write("message\n")
        file.flush()
        wait_read(file)
    wait_read(None)
