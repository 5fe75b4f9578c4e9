"""The reader of a command's output, which may end before the command does (`isthmus receive … | head`).

What it is: a wait until the program behind a pipe has read what was written. A pipe takes 64 KiB more than its reader does, and what is
in it when the reader ends is lost: a message that is removed because it was printed must have been read. What it is not: a check of what the reader
does with it.
Specification: pipe(7), ioctl(2) FIONREAD, poll(2) POLLERR.
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

__all__ = ["wait_read"]

_FIRST_PAUSE_SECONDS = 0.00005
_PAUSE_SECONDS = 0.02
# Ctrl-C reaches the reader too, which may end a little later.
_STOP_SECONDS = 1.0


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
    try:
        descriptor = stream.fileno()
        if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            return True
    except (AttributeError, OSError, ValueError):  # not a file
        return True
    pause, stopped_at = _FIRST_PAUSE_SECONDS, math.inf
    while _unread(descriptor):
        if is_stopped():
            stopped_at = min(stopped_at, time.monotonic())
            if time.monotonic() - stopped_at >= _STOP_SECONDS:
                return False
        if _has_ended(descriptor) and _unread(descriptor):
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
        time.sleep(pause)
        pause = min(2 * pause, _PAUSE_SECONDS)
    return True


def _unread(descriptor: int) -> int:
    try:
        return int(struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)))[0])
    except OSError:  # a system that does not report it
        return 0


def _has_ended(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, 0)
    return any(event & (select.POLLERR | select.POLLNVAL) for _, event in poll.poll(0))
