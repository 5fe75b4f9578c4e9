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
    I1. Consecutive SETTLE runs are merged before they are sent.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

from isthmus.bridge.host import channel as generic
from isthmus.bridge.host.channel import (
    ChannelError,
    Claim,
    Listening,
    channel_path,
    connect,
    listen,
    private_directory,
    sweep,
)

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
_PAIR = struct.Struct("<qq")
_KINDS = range(HELLO, GRANT + 1)


COUNTS = ("completed", "dead_lettered", "discarded", "deferred", "abandoned", "resent")
"""What a sink counts, in the order in which FLUSHED tells it."""


def dial(path: Path) -> Channel | None:
    """The sink's end; None while no reader listens."""
    sock = connect(path)
    return None if sock is None else Channel(sock)


class Channel(generic.Channel):
    """One end of an open channel; see `isthmus.bridge.host.channel`.

    Args:
        sock: a connected stream socket.
    """

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock, _KINDS)
        self._runs: list[list[int]] = []

    def has_queued(self) -> bool:
        """Whether anything waits to be written."""
        return bool(self._runs) or super().has_queued()

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
        super().send(kind, payload)

    def flush(self) -> None:
        """Writes what can be written without blocking."""
        self._pack_runs()
        super().flush()

    def _pack_runs(self) -> None:
        if self._runs:
            body = b"".join(_PAIR.pack(first, last) for first, last in self._runs)
            self._runs.clear()
            super().send(SETTLE, body)


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
