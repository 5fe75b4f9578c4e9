"""The control channel between the reader and the sink of one Spark task.

What it is: a Unix socket in a directory that only this user may enter, named after the task, so that reader and sink find
each other without an option that could leak, and no other local user can settle. Frames are a kind, a length and a
payload. What it is not: a way between machines; reader and sink of a task run on one.

Frames, sink to reader:
    HELLO    the sink is there; payload: process id
    SETTLE   completed sequence numbers: pairs (first, last) of int64, little endian
    DISPOSE  JSON [{"first", "last", "disposition", "reason", "description"}]: settled otherwise than completed
    FLUSHED  int64: everything that the reader yielded before flush row K is settled, or never came
    HOLD     the target is away: JSON {"error": text}; send no more
    RESUME   the target is back
    ALIVE    nothing to say
    STATS    JSON counters
    ERROR    the sink failed: JSON {"error": text, "retryable": bool}
    END      end of input, and everything that came is settled
Frames, reader to sink:
    STOPPED  the reader has ended the lease in good order; payload JSON
Frames, driver to reader:
    STOP     a wish that the lease ends; payload: why

Invariants:
    I1. Writing never blocks: what the socket does not take waits here, in order (a sink that waits for the channel while
        the reader waits for Spark would be a deadlock).
    I2. Consecutive SETTLE runs are merged before they are sent.
    I3. Only processes of the same user get in: the directory is 0700 and owned by this user, or nothing is opened.
"""

from __future__ import annotations

import hashlib
import os
import select
import socket
import stat
import struct
import tempfile
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from isthmus.errors import IsthmusError

__all__ = [
    "ALIVE",
    "DISPOSE",
    "END",
    "ERROR",
    "FLUSHED",
    "HELLO",
    "HOLD",
    "RESUME",
    "SETTLE",
    "STATS",
    "STOP",
    "STOPPED",
    "Channel",
    "ChannelError",
    "channel_path",
    "dial",
    "listen",
    "private_directory",
    "sweep",
    "unpack_pairs",
]

HELLO, SETTLE, DISPOSE, FLUSHED, HOLD, RESUME, ALIVE, STATS, ERROR, END, STOPPED, STOP = range(1, 13)
_HEAD = struct.Struct("<BI")
_PAIR = struct.Struct("<qq")
_RECEIVE_BYTES = 1 << 16
# Frames come from our own processes; one that claims more is a fault, not a message.
_FRAME_LIMIT_BYTES = 1 << 24


class ChannelError(IsthmusError):
    """The control channel cannot be opened, or the other side does not keep to it."""

    code = "control-channel"
    retryable = True


def private_directory() -> Path:
    """A directory that only this user may enter, the same for all processes of this user on this machine.

    Raises:
        ChannelError: it exists and belongs to someone else, or others may enter it.
    """
    path = Path(tempfile.gettempdir()) / f"isthmus-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise ChannelError(f"{path} is not this user's alone; remove it, or set TMPDIR to a directory of your own")
    return path


def channel_path(*parts: object) -> Path:
    """Where the channel of the task that `parts` name lies."""
    name = hashlib.sha256("/".join(map(str, parts)).encode()).hexdigest()[:32]
    return private_directory() / f"{name}.lease"


def listen(path: Path) -> socket.socket:
    """The reader's end; whoever left a socket of that name is gone, since a task has one reader."""
    path.unlink(missing_ok=True)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(str(path))
    except OSError as error:
        sock.close()
        raise ChannelError(
            f"{path}: {error.strerror or error}; set TMPDIR to a directory with a shorter name"
        ) from None
    path.chmod(0o600)
    sock.listen(4)
    sock.setblocking(False)
    return sock


def sweep() -> None:
    """Removes the sockets of processes that were killed: nobody listens there any more."""
    for path in private_directory().iterdir():
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
        except OSError:
            continue
        finally:
            sock.close()


def dial(path: Path) -> Channel | None:
    """The sink's end; None while no reader listens."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.connect(str(path))
    except OSError:
        sock.close()
        return None
    return Channel(sock)


class Channel:
    """One end of an open channel.

    Args:
        sock: a connected stream socket.

    Attributes:
        closed: whether the other end is gone.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.closed = False
        self._sock = sock
        self._sock.setblocking(False)
        self._in = b""
        self._out: deque[bytes] = deque()
        self._runs: list[list[int]] = []

    def fileno(self) -> int:
        """The descriptor to poll."""
        return self._sock.fileno()

    def interest(self) -> int:
        """What to poll for."""
        return select.POLLIN | (select.POLLOUT if self._out or self._runs else 0)

    # ---- writing

    def settle(self, first: int, last: int) -> None:
        """Queues the completion of sequence numbers first to last."""
        runs = self._runs
        if runs and runs[-1][1] + 1 == first:
            runs[-1][1] = last
        else:
            runs.append([first, last])

    def settle_all(self, sequences: Sequence[int]) -> None:
        """Queues the completion of sequence numbers."""
        if isinstance(sequences, range):
            if sequences:
                self.settle(sequences[0], sequences[-1])
            return
        for sequence in sequences:
            self.settle(sequence, sequence)

    def send(self, kind: int, payload: bytes = b"") -> None:
        """Queues a frame behind everything queued so far."""
        self._pack_runs()
        self._out.append(_HEAD.pack(kind, len(payload)) + payload)

    def _pack_runs(self) -> None:
        if self._runs:
            body = b"".join(_PAIR.pack(first, last) for first, last in self._runs)
            self._out.append(_HEAD.pack(SETTLE, len(body)) + body)
            self._runs.clear()

    def flush(self) -> None:
        """Writes what can be written without blocking."""
        self._pack_runs()
        while self._out and not self.closed:
            data = self._out.popleft()
            try:
                count = self._sock.send(data, socket.MSG_NOSIGNAL)
            except BlockingIOError:
                count = 0
            except OSError:
                self.closed = True
                return
            if count < len(data):
                self._out.appendleft(data[count:])
                return

    # ---- reading

    def receive(self) -> list[tuple[int, bytes]]:
        """The frames that have arrived; sets `closed` at the end of the stream.

        Raises:
            ChannelError: the bytes are no frames.
        """
        while not self.closed:
            try:
                data = self._sock.recv(_RECEIVE_BYTES)
            except BlockingIOError:
                break
            except OSError:
                self.closed = True
                break
            if not data:
                self.closed = True
                break
            self._in += data
            if len(data) < _RECEIVE_BYTES:
                break
        frames = []
        at, end = 0, len(self._in)
        while end - at >= _HEAD.size:
            kind, size = _HEAD.unpack_from(self._in, at)
            if size > _FRAME_LIMIT_BYTES or not HELLO <= kind <= STOP:
                raise ChannelError(f"frame of kind {kind} with {size} bytes")
            if end - at - _HEAD.size < size:
                break
            at += _HEAD.size
            frames.append((kind, self._in[at : at + size]))
            at += size
        self._in = self._in[at:]
        return frames

    def close(self) -> None:
        """Closes this end."""
        self.closed = True
        self._sock.close()


def unpack_pairs(payload: bytes) -> list[tuple[int, int]]:
    """The runs of a SETTLE frame."""
    return list(_PAIR.iter_unpack(payload))
