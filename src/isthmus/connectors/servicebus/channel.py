"""The control channel between the reader and the sink of one Spark task.

What it is: a Unix socket in a directory that only this user may enter, named after the task, so that reader and sink find
each other without an option that could leak, and no other local user can settle. Frames are a kind, a length and a
payload. What it is not: a way between machines; reader and sink of a task run on one.

Frames, sink to reader:
    HELLO    the sink is there; payload: process id
    SETTLE   completed sequence numbers: pairs (first, last) of int64, little endian
    DISPOSE  JSON [{"first", "last", "disposition", "reason", "description"}]: settled otherwise than completed
    FLUSHED  int64 K: everything that the reader yielded before flush row K is settled, or never came; then the counts of
             `COUNTS` up to now, int64 each
    HOLD     the target is away: JSON {"error": text}; send no more
    RESUME   the target is back
    ALIVE    nothing to say
    STATS    JSON counters
    ERROR    the sink failed: JSON {"error": text, "retryable": bool}
    END      end of input, and everything that came is settled
Frames, reader to sink:
    STOPPED  the reader has ended the lease in good order; payload JSON
    WINDOW   int64: how many messages may be under way at the source; answers HELLO, and told again when it changes
    FENCE    int64: until when the sink may send, in nanoseconds of that monotonic time (`isthmus.bridge.fence`)
    CLOCK    int64: the wall time of the source's broker minus the monotonic time that all processes here share, in ms
Frames, driver to reader:
    STOP     a wish that the lease ends; payload: why
    GRANT    the answer to a report that asked: JSON {"asked": its number, "held_seconds": how long the claim is still held},
             and what `isthmus.bridge.crash_search` plans: {"window", "span", "set_aside", "deaths"}

Invariants:
    I1. Writing never blocks: what the socket does not take waits here, in order (a sink that waits for the channel while
        the reader waits for Spark would be a deadlock).
    I2. Consecutive SETTLE runs are merged before they are sent.
    I3. Only processes of the same user get in: the directory is 0700 and owned by this user, or nothing is opened.
    I4. Only what nobody owns any more is swept away: who listens holds a lock on a file beside the socket from before it
        binds, and the system takes that lock back however the process ends. Nobody is dialled to find out.
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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from isthmus.errors import IsthmusError

__all__ = [
    "ALIVE",
    "CLOCK",
    "COUNTS",
    "DISPOSE",
    "END",
    "ERROR",
    "FENCE",
    "FLUSHED",
    "GRANT",
    "HELLO",
    "HOLD",
    "RESUME",
    "SETTLE",
    "STATS",
    "STOP",
    "STOPPED",
    "WINDOW",
    "Channel",
    "ChannelError",
    "Claim",
    "Listening",
    "channel_path",
    "dial",
    "listen",
    "pack_flushed",
    "packed",
    "private_directory",
    "sweep",
    "unpack_flushed",
    "unpack_pairs",
    "unpacked",
]

HELLO, SETTLE, DISPOSE, FLUSHED, HOLD, RESUME, ALIVE, STATS, ERROR, END, STOPPED, STOP, WINDOW, CLOCK, FENCE, GRANT = (
    range(1, 17)
)
_HEAD = struct.Struct("<BI")
_PAIR = struct.Struct("<qq")
_RECEIVE_BYTES = 1 << 16
_SEND_BYTES = 1 << 16
# Frames come from our own processes; one that claims more is a fault, not a message.
_FRAME_LIMIT_BYTES = 1 << 24
_LOCK_SUFFIX = ".lock"
# A sweep holds a lock for as long as two files take to remove.
_SWEEP_SECONDS = 0.2


COUNTS = ("completed", "dead_lettered", "discarded", "deferred", "abandoned", "resent")
"""What a sink counts, in the order in which FLUSHED tells it."""


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


class Claim:
    """Says to `sweep` that the socket at `path` belongs to a living process; taken before the socket is bound.

    Whoever held the name before is gone, since a name has one owner: a claim that its process forgot is replaced.

    Args:
        path: where the socket will be.

    Raises:
        ChannelError: the file beside it cannot be made.
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
        """Removes the socket, if it is still this claim's, and gives the claim up."""
        if _same_file(self._fd, self._lock):
            self._path.unlink(missing_ok=True)
            self._lock.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Gives the claim up as the end of the process would."""
        os.close(self._fd)


def _locked(fd: int, lock: Path) -> bool:
    """Locks an open file, unless somebody has it or it is no longer the one at `lock`."""
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
    """The reader's end; whoever left a socket of that name is gone, since a task has one reader.

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
    """Removes the sockets of processes that were killed: nobody holds the locks beside them any more."""
    for lock in private_directory().glob(f"*{_LOCK_SUFFIX}"):
        try:
            fd = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue
        with contextlib.closing(os.fdopen(fd, "rb")):
            if _locked(fd, lock):
                lock.with_name(lock.name.removesuffix(_LOCK_SUFFIX)).unlink(missing_ok=True)
                lock.unlink(missing_ok=True)


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
        self._unheard = False

    def fileno(self) -> int:
        """The descriptor to poll."""
        return self._sock.fileno()

    def interest(self) -> int:
        """What to poll for."""
        return select.POLLIN | (select.POLLOUT if self.has_queued() else 0)

    # ---- writing

    def has_queued(self) -> bool:
        """Whether anything waits to be written."""
        return bool(self._out or self._runs)

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
        """Writes what can be written without blocking.

        Where the other end is gone, what is queued is dropped, and `closed` is left to `receive`: the last word of the
        other end may still wait to be read.
        """
        self._pack_runs()
        if self._unheard:
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
                self._unheard = True
                self._out.clear()
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
            if size > _FRAME_LIMIT_BYTES or not HELLO <= kind <= GRANT:
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


def packed(number: int) -> bytes:
    """The payload of a frame that tells one number."""
    return number.to_bytes(8, "little", signed=True)


def unpacked(payload: bytes) -> int:
    """The number of such a frame."""
    return int.from_bytes(payload, "little", signed=True)


def unpack_pairs(payload: bytes) -> list[tuple[int, int]]:
    """The runs of a SETTLE frame."""
    return list(_PAIR.iter_unpack(payload))


def pack_flushed(number: int, counts: Mapping[str, int]) -> bytes:
    """The payload of a FLUSHED frame."""
    return b"".join(value.to_bytes(8, "little", signed=True) for value in (number, *(counts[name] for name in COUNTS)))


def unpack_flushed(payload: bytes) -> tuple[int, dict[str, int]]:
    """The flush row of a FLUSHED frame, and the counts."""
    number, *counts = (value for (value,) in struct.iter_unpack("<q", payload))
    return number, dict(zip(COUNTS, counts, strict=False))
