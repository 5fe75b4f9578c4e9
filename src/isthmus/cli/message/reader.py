"""The reader of a command's output, which may end before the command does (`isthmus receive … | head`).

What it is: a text written, and a wait until the program behind a pipe has read it. A pipe takes 64 KiB more than its reader does, and what is
in it when the reader ends is lost: a message that is removed because it was printed must have been read. What it is not: a check of what the reader
does with it.
Specification: pipe(7), ioctl(2) FIONREAD, poll(2) POLLERR and POLLOUT.

Invariants:
    I1. No call blocks while the reader pauses: the caller is called back all the time, also within a text that is larger than the pipe.
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

__all__ = ["hand_over", "wait_read"]

_FIRST_PAUSE_SECONDS = 0.00005
_PAUSE_SECONDS = 0.02
# Ctrl-C reaches the reader too, which may end a little later.
_STOP_SECONDS = 1.0


def hand_over(stream: Any, text: str, is_stopped: Callable[[], bool] = lambda: False) -> bool:
    """Write a text, and wait until the reader of a pipe has read it.

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
    descriptor = _pipe(stream)
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
    """Wait until the reader of a pipe has read everything; returns at once where the stream is none.

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


def _pipe(stream: Any) -> int | None:
    """The descriptor of a stream that is a pipe."""
    try:
        descriptor = int(stream.fileno())
        return descriptor if stat.S_ISFIFO(os.fstat(descriptor).st_mode) else None
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
    """Whether a pipe takes `PIPE_BUF` bytes; one without a reader does, with an error."""
    return bool(_poll(descriptor, select.POLLOUT))


def _has_read(descriptor: int) -> bool:
    """Whether the reader has read everything.

    Raises:
        BrokenPipeError: it has ended, and left something.
    """
    if not _unread(descriptor):
        return True
    if _poll(descriptor) & (select.POLLERR | select.POLLNVAL) and _unread(descriptor):
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
    return False


def _unread(descriptor: int) -> int:
    try:
        return int(struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)))[0])
    except OSError:  # a system that does not report it
        return 0


def _poll(descriptor: int, wanted: int = 0) -> int:
    poll = select.poll()
    poll.register(descriptor, wanted)
    return sum(event for _, event in poll.poll(0))
