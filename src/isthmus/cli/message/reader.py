"""The reader of a command's output, which may end before the command does (`isthmus receive … | head`).

What it is: a text written, and a wait until the program behind a pipe has read it, or behind a socket, with which some programs start others. A pipe
takes 64 KiB more than its reader does, and what is
in it when the reader ends is lost: a message that is removed because it was printed must have been read. What it is not: a check of what the reader
does with it, or, where that is on another machine, of more than that machine's receipt.
Specification: pipe(7), ioctl(2) FIONREAD, unix(7) and tcp(7) SIOCOUTQ, poll(2) POLLERR and POLLOUT.

Invariants:
    I1. No call blocks while the reader, or a terminal (Ctrl-S), pauses: the caller is called back all the time, also within a text that is larger
        than the pipe.
"""

from __future__ import annotations

import errno
import fcntl
import math
import os
import select
import stat
import struct
import termios
import time
from collections.abc import Callable
from typing import Any

__all__ = ["hand_over", "is_ready", "wait_read"]

_FIRST_PAUSE_SECONDS = 0.00005
_PAUSE_SECONDS = 0.02
# Ctrl-C reaches the reader too, which may end a little later.
_STOP_SECONDS = 1.0


def hand_over(stream: Any, text: str, is_stopped: Callable[[], bool] = lambda: False) -> bool:
    """Write a text, and wait until the reader of a pipe or socket has read it.

    Args:
        stream: of text, flushed.
        text: with its end-of-line.
        is_stopped: as for `wait_read`.

    Returns:
        Whether everything was written and read; False only if it was stopped.

    Raises:
        BrokenPipeError: the reader has ended, and left something.
        OSError: it cannot be written.
    """
    descriptor = _pipe(stream, or_terminal=True)
    if descriptor is None:
        stream.write(text)
        stream.flush()
        return True
    rest = text.encode(stream.encoding, stream.errors)
    while rest:
        if not _wait(lambda: _takes(descriptor), is_stopped):
            return False
        rest = rest[os.write(descriptor, rest[: select.PIPE_BUF]) :]
    return wait_read(stream, is_stopped)


def wait_read(stream: Any, is_stopped: Callable[[], bool] = lambda: False) -> bool:
    """Wait until the reader of a pipe or socket has read everything; returns at once where the stream is neither.

    Args:
        stream: flushed.
        is_stopped: called repeatedly; it ends the wait, soon.

    Returns:
        Whether everything was read; False only if it was stopped.

    Raises:
        BrokenPipeError: the reader has ended, and left something.
    """
    descriptor = _pipe(stream)
    return descriptor is None or _wait(lambda: _has_read(descriptor), is_stopped)


def is_ready(stream: Any) -> bool:
    """Whether a short text can be written now: false while the reader of a full pipe or socket, or a terminal, pauses."""
    descriptor = _pipe(stream, or_terminal=True)
    return descriptor is None or _takes(descriptor)


def _pipe(stream: Any, *, or_terminal: bool = False) -> int | None:
    """The descriptor of a stream that is a pipe or a socket, or a terminal if that counts."""
    try:
        descriptor = int(stream.fileno())
        mode = os.fstat(descriptor).st_mode
        has_reader = stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or (or_terminal and os.isatty(descriptor))
        return descriptor if has_reader else None
    except (AttributeError, OSError, ValueError):  # not a file
        return None


def _wait(is_met: Callable[[], bool], is_stopped: Callable[[], bool]) -> bool:
    """Wait for a condition; False if it was stopped."""
    pause, stopped_at = _FIRST_PAUSE_SECONDS, math.inf
    while not is_met():
        if is_stopped():
            stopped_at = min(stopped_at, time.monotonic())
            if time.monotonic() - stopped_at >= _STOP_SECONDS:
                return False
        time.sleep(pause)
        pause = min(2 * pause, _PAUSE_SECONDS)
    return True


def _takes(descriptor: int) -> bool:
    """Whether a pipe, a socket or a terminal takes `PIPE_BUF` bytes; one without a reader does, with an error."""
    return bool(_poll(descriptor, select.POLLOUT))


def _has_read(descriptor: int) -> bool:
    """Whether the reader has read everything.

    Raises:
        BrokenPipeError: it has ended, and left something.
    """
    is_socket = stat.S_ISSOCK(os.fstat(descriptor).st_mode)
    question = termios.TIOCOUTQ if is_socket else termios.FIONREAD
    is_read = not _unread(descriptor, question)
    if is_read and not is_socket:
        return True
    has_failed = bool(_poll(descriptor) & (select.POLLERR | select.POLLNVAL))
    # A socket keeps nothing for a reader that has ended, and reports an error if that has left something.
    if has_failed and (is_socket or _unread(descriptor, question)):
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
    return is_read


def _unread(descriptor: int, question: int) -> int:
    try:
        return int(struct.unpack("i", fcntl.ioctl(descriptor, question, bytes(4)))[0])
    except OSError:  # a system that does not report it
        return 0


def _poll(descriptor: int, wanted: int = 0) -> int:
    poll = select.poll()
    poll.register(descriptor, wanted)
    return sum(event for _, event in poll.poll(0))
