"""Whether Spark has taken everything that a worker wrote.

What it is: the end of a batch's reading. Python hands its rows to a socket and is done, while Spark may take one row and
close it: `isEmpty` or `limit`. So the worker writes more than Spark buffers after the last row, batches without rows, and
waits until the socket is empty at both ends: then Spark has requested data after the last row. What it is not: an
acknowledgement of Spark; that is its commit.

Spark's side is a Java process on this machine. It reads a batch of rows only when the rows of the previous one are consumed,
through a buffer of `spark.buffer.size`. The bytes in a TCP socket are in the system's table of sockets (Linux,
proc(5), `/proc/net/tcp`); those in a Unix socket in the sender's own queue (unix(7), SIOCOUTQ). Where neither can be
read, the end of the writing is decisive.

Invariants:
    I1. On Linux `wait` returns True only when Spark has taken the last row.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import time
from pathlib import Path
from typing import Any

from isthmus.unsent import unsent_bytes

__all__ = ["BUFFER_BYTES", "Consumption", "worker_stream"]

# Of Spark (`spark.buffer.size`), unless its workers are configured otherwise.
BUFFER_BYTES = 65_536
POLL_SECONDS = 0.001
POLL_LIMIT_SECONDS = 0.02
_ESTABLISHED = "01"
_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))


class Consumption:
    """Watches one socket to Spark.

    Args:
        stream: the file to which Spark's worker writes; None: unknown, so that nothing can be watched.
        buffer_bytes: how many bytes Spark's side reads ahead.
    """

    def __init__(self, stream: Any, buffer_bytes: int = BUFFER_BYTES) -> None:
        self._stream = stream
        self._socket: socket.socket | None = None
        if stream is not None and sys.platform == "linux":
            try:
                self._socket = socket.socket(fileno=os.dup(stream.fileno()))
            except OSError:  # a pipe, or a file
                self._socket = None
        self.filler_bytes = buffer_bytes + 4096 if self._socket is not None else 0

    @classmethod
    def of_this_worker(cls) -> Consumption:
        """The consumption of the calling Spark worker."""
        return cls(worker_stream(), int(os.environ.get("SPARK_BUFFER_SIZE") or BUFFER_BYTES))

    def wait(self) -> bool:
        """Waits until all written data is consumed; returns False if Spark has closed the socket before that."""
        sock = self._socket
        if sock is None:
            return True
        self._stream.flush()
        pause = POLL_SECONDS
        closed = select.poll()
        closed.register(sock, select.POLLRDHUP | select.POLLHUP | select.POLLERR)
        while True:
            unread = _unread_bytes(sock)
            # In this order: a closed socket is empty, too.
            if unread is None or closed.poll(0):
                return False
            if unread == 0:
                return True
            time.sleep(pause)
            pause = min(pause * 2, POLL_LIMIT_SECONDS)

    def close(self) -> None:
        """Closes its copy of the descriptor."""
        if self._socket is not None:
            self._socket.close()


def worker_stream() -> Any:
    """The file to which Spark's worker writes a task's rows, from the calling frames; None where there is none."""
    frame: Any = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "dump_stream":
            found = frame.f_locals.get("stream")
            if hasattr(found, "flush") and hasattr(found, "fileno"):
                return found
        frame = frame.f_back
    return None


def _unread_bytes(sock: socket.socket) -> int | None:
    """Bytes that the other end has not read; None if it has closed, or they are not known: nothing is settled then."""
    own = unsent_bytes(sock)
    if own is None or sock.family == socket.AF_UNIX or own:
        return own
    try:
        port, peer_port = sock.getsockname()[1], sock.getpeername()[1]
    except OSError:
        return None
    entry = _entry(peer_port, port)
    return None if entry is None else entry


def _entry(local_port: int, remote_port: int) -> int | None:
    """Bytes in the receive queue of the connected socket with these ports; None if there is none."""
    local, remote = f":{local_port:04X}", f":{remote_port:04X}"
    readable = False
    for table in _TABLES:
        try:
            text = table.read_text()
        except OSError:
            continue
        readable = True
        for line in text.splitlines()[1:]:
            fields = line.split(maxsplit=5)
            if fields[1].endswith(local) and fields[2].endswith(remote) and fields[3] == _ESTABLISHED:
                return int(fields[4].partition(":")[2], 16)
    return None if readable else 0
