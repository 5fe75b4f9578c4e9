"""Channels: frames over a connected stream socket, and the private socket by which reader and sink of a Spark task connect.

What it is: a frame is a kind (one byte), a length (uint32, little endian) and a payload; `Channel` sends frames over any
connected stream socket. Reader and sink of a task connect by a Unix socket in a directory that only this user may enter,
named after the task, without an option that could leak. What it is not: the contents of frames (`isthmus.bridge.frame`),
nor the connection to the driver (`control.client`, `control.server`).

Invariants:
    I1. Writing never blocks: bytes that the socket does not take wait here, in order (a sink that waits for the channel
        while the reader waits for Spark would be a deadlock).
    I2. A frame is received whole or not at all, and in the order of sending.
    I3. Only processes of the same user reach a Unix socket: the directory is 0700 and owned by this user, or nothing is opened.
    I4. `sweep` removes only sockets that no process owns: a listener holds a lock on a file beside the socket from before it
        binds, and the system releases that lock when the process ends in any way. No connection is made to find out.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import select
import socket
import stat
import struct
import tempfile
import time
from collections import deque
from collections.abc import Container
from pathlib import Path
from typing import Any

from isthmus.bridge.frame import Kind
from isthmus.errors import IsthmusError

__all__ = [
    "FRAME_LIMIT_BYTES",
    "Channel",
    "ChannelError",
    "Claim",
    "Listening",
    "channel_path",
    "connect",
    "dial",
    "listen",
    "private_directory",
    "sweep",
]

_HEAD = struct.Struct("<BI")
_RECEIVE_BYTES = 1 << 16
_SEND_BYTES = 1 << 16
# Frames come from our own processes; a longer one is a fault.
FRAME_LIMIT_BYTES = 1 << 24
_KINDS = frozenset(Kind)
_LOCK_SUFFIX = ".lock"
# A sweep holds a lock for as long as two files take to remove.
_SWEEP_SECONDS = 0.2


class ChannelError(IsthmusError):
    """The control channel cannot be opened, or the other side violates its protocol."""

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
    """The path of the channel of the task that `parts` name."""
    name = hashlib.sha256("/".join(map(str, parts)).encode()).hexdigest()[:32]
    return private_directory() / f"{name}.lease"


class Claim:
    """Marks the socket at `path`, for `sweep`, as owned by a running process; taken before the socket is bound.

    A name has one owner, so an earlier owner has ended: a claim that its process did not remove is replaced.

    Args:
        path: where the socket will be.

    Raises:
        ChannelError: its lock file cannot be created.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = path.with_name(path.name + _LOCK_SUFFIX)
        limit = time.monotonic() + _SWEEP_SECONDS
        while True:
            try:
                self._fd = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except OSError as error:
                raise _unusable(path, error) from None
            if _locked(self._fd, self._lock):
                return
            os.close(self._fd)
            if time.monotonic() > limit:
                self._lock.unlink(missing_ok=True)
            time.sleep(0.001)

    def discard(self) -> None:
        """Removes the socket, if it is still this claim's, and releases the claim."""
        if _same_file(self._fd, self._lock):
            self._path.unlink(missing_ok=True)
            self._lock.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Releases the claim, as the end of the process would."""
        os.close(self._fd)


def _locked(fd: int, lock: Path) -> bool:
    """Locks an open file, unless another process has it locked or it is no longer the one at `lock`."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return _same_file(fd, lock)


def _same_file(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False


def _unusable(path: Path, error: OSError) -> ChannelError:
    return ChannelError(f"{path}: {error.strerror or error}; set TMPDIR to a directory with a shorter name")


class Listening:
    """A claimed socket that takes connections and never blocks; see `listen`."""

    def __init__(self, sock: socket.socket, claim: Claim) -> None:
        self._sock = sock
        self._claim = claim

    def fileno(self) -> int:
        """The descriptor to poll."""
        return self._sock.fileno()

    def accept(self) -> tuple[socket.socket, Any]:
        """The next connection.

        Raises:
            BlockingIOError: there is none.
        """
        return self._sock.accept()

    def close(self) -> None:
        """Closes as the end of the process would: the files stay for `sweep`."""
        self._sock.close()
        self._claim.close()

    def discard(self) -> None:
        """Closes, and removes the files."""
        self._sock.close()
        self._claim.discard()


def listen(path: Path) -> Listening:
    """The reader's end; the owner of an existing socket of that name has ended, because a task has one reader.

    Raises:
        ChannelError: no socket can be bound there.
    """
    claim = Claim(path)
    path.unlink(missing_ok=True)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(str(path))
    except OSError as error:
        sock.close()
        claim.discard()
        raise _unusable(path, error) from None
    path.chmod(0o600)
    sock.listen(4)
    sock.setblocking(False)
    return Listening(sock, claim)


def sweep() -> None:
    """Removes the sockets of killed processes, whose lock files are not locked any more."""
    for lock in private_directory().glob(f"*{_LOCK_SUFFIX}"):
        try:
            fd = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue
        with contextlib.closing(os.fdopen(fd, "rb")):
            if _locked(fd, lock):
                lock.with_name(lock.name.removesuffix(_LOCK_SUFFIX)).unlink(missing_ok=True)
                lock.unlink(missing_ok=True)


def connect(path: Path) -> socket.socket | None:
    """A socket connected to the listener at `path`; None while there is no listener."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.connect(str(path))
    except OSError:
        sock.close()
        return None
    return sock


def dial(path: Path) -> Channel | None:
    """The sink's end; None while no reader listens."""
    sock = connect(path)
    return None if sock is None else Channel(sock)


class Channel:
    """One end of an open channel.

    Args:
        sock: a connected stream socket.
        kinds: the kinds of frames that may come.

    Attributes:
        closed: whether the other end has closed.
    """

    def __init__(self, sock: socket.socket, kinds: Container[int] = _KINDS) -> None:
        self.closed = False
        self._sock = sock
        self._sock.setblocking(False)
        self._kinds = kinds
        self._in = b""
        self._out: deque[bytes] = deque()
        self._write_failed = False

    def fileno(self) -> int:
        """The descriptor to poll; -1 once closed."""
        return self._sock.fileno()

    def interest(self) -> int:
        """What to poll for."""
        return select.POLLIN | (select.POLLOUT if self.has_queued() else 0)

    # ---- writing

    def has_queued(self) -> bool:
        """Whether anything waits to be written."""
        return bool(self._out)

    def send(self, kind: int, payload: bytes = b"") -> None:
        """Queues a frame after everything queued so far."""
        self._out.append(_HEAD.pack(kind, len(payload)) + payload)

    def flush(self) -> None:
        """Writes what can be written without blocking.

        Where the other end has closed, queued frames are dropped, and `receive` sets `closed`: the last frames of the other
        end may still wait to be read.
        """
        if self._write_failed:
            self._out.clear()
        while self._out and not self.closed:
            data = self._out.popleft()
            if self._out and len(data) < _SEND_BYTES:  # together: each write may wake the other end
                data += b"".join(self._out)
                self._out.clear()
            try:
                count = self._sock.send(data, socket.MSG_NOSIGNAL)
            except BlockingIOError:
                count = 0
            except OSError:
                self._write_failed = True
                self._out.clear()
                return
            if count < len(data):
                self._out.appendleft(data[count:])
                return

    def end_writing(self) -> None:
        """Shuts down the writing side; reading continues. Frames still queued are dropped."""
        self._write_failed = True
        self._out.clear()
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)

    # ---- reading

    def receive(self) -> list[tuple[int, bytes]]:
        """The frames that have arrived; sets `closed` at the end of the stream.

        Raises:
            ChannelError: the bytes are not frames.
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
            if size > FRAME_LIMIT_BYTES or kind not in self._kinds:
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
