"""The settlements of a sink that are not yet sent to the reader, over all routes of a lease.

What it is: runs of positions by handle, dispositions, the number of rows of each handle, and when they are sent. Several are sent
together: each frame wakes the reader, which writes its settlements at once. What it is not: the channel that carries the frames.

Invariants:
    I1. Every position that is settled or disposed of while its handle is known is sent exactly once.
    I2. No settlement waits longer than `SEND_SECONDS`, nor for more than `SEND_MESSAGES` messages, nor while the window of its
        route is three quarters full with messages whose settlement is not sent: the source may be waiting for it.
    I3. A flush row is sent with the rows that came before it; of several unsent ones, the last.
    I4. Work grows with the settlements and their handles, not with the number of open handles.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from typing import TypeVar

from isthmus.bridge.delivery_event import Disposition
from isthmus.bridge.frame import Kind, pack_flushed, pack_json, pack_runs

__all__ = ["SEND_MESSAGES", "SEND_SECONDS", "SettleAccount"]

# The reader writes these settlements to its disk or its connection in one go, and arriving messages wait less for it.
SEND_SECONDS = 0.032
# From so many on they are written together anyway.
SEND_MESSAGES = 50
# A frame is at most 16 MiB, and a run takes 24 bytes. A disposition has two texts, with at most 12 bytes a character in JSON.
_FRAME_RUNS = 50_000
_FRAME_DISPOSITIONS = 150
_TEXT_CHARACTERS = 4_000

T = TypeVar("T")


class _Entry:
    """One handle.

    Attributes:
        came: rows that came since it was opened.
        sent: rows whose settlement or disposition was sent.
        unsent: rows that are settled or disposed of, and not sent.
        waits_at: the number of unsent rows with which the source may be waiting.
        runs: [first, last] of settled and unsent positions.
    """

    __slots__ = ("came", "runs", "sent", "unsent", "waits_at")

    def __init__(self) -> None:
        self.came = self.sent = self.unsent = 0
        self.waits_at = sys.maxsize
        self.runs: list[list[int]] = []


class SettleAccount:
    """The account of one sink."""

    def __init__(self) -> None:
        self._entries: dict[int, _Entry] = {}
        self._untold: dict[int, _Entry] = {}
        self._dispositions: list[dict[str, object]] = []
        self._moved: dict[int, int] = {}  # rows by handle, where any came since the last flush row
        self._flushed: dict[int, int] = {}  # rows by handle before the last flush row
        self._flush_number: int | None = None
        self._count = 0
        self._waiting: set[int] = set()  # handles whose source may be waiting
        self._is_awaited = False
        self._send_at = -math.inf

    # ---- handles

    def open(self, handle: int) -> None:
        """Rows of this handle may come."""
        self._entries[handle] = _Entry()
        self._moved[handle] = 0

    def close(self, handle: int) -> None:
        """Nothing of this handle is settled any more; unsent settlements are dropped."""
        for account in (self._entries, self._untold, self._moved, self._flushed):
            account.pop(handle, None)
        self._waiting.discard(handle)

    def set_window(self, handle: int, messages: int) -> None:
        """So many messages may be outstanding."""
        entry = self._entries.get(handle)
        if entry is not None:
            entry.waits_at = max(1, messages * 3 // 4)
            self._check(handle, entry)

    # ---- events

    def came(self, handle: int, rows: int) -> None:
        """Rows of a handle came."""
        entry = self._entries.get(handle)
        if entry is not None:
            entry.came += rows
            self._moved[handle] = entry.came
            self._check(handle, entry)

    def settle(self, handle: int, positions: Sequence[int]) -> None:
        """The target has acknowledged these positions."""
        entry = self._note(handle, len(positions)) if positions else None
        if entry is None:
            return
        runs = entry.runs
        if isinstance(positions, range) and positions.step == 1:
            if runs and runs[-1][1] + 1 == positions[0]:
                runs[-1][1] = positions[-1]
            else:
                runs.append([positions[0], positions[-1]])
            return
        last = runs[-1] if runs else None
        for position in positions:
            if last is not None and last[1] + 1 == position:
                last[1] = position
            else:
                last = [position, position]
                runs.append(last)

    def dispose(self, handle: int, position: int, disposition: Disposition) -> None:
        """A position gets another disposition than acknowledged by the target."""
        if self._note(handle, 1) is None:
            return
        kind, reason, description = (text[:_TEXT_CHARACTERS] for text in disposition)
        last = self._dispositions[-1] if self._dispositions else {}
        item = {"handle": handle, "disposition": kind, "reason": reason, "description": description}
        if last.get("last") == position - 1 and all(last[name] == value for name, value in item.items()):
            last["last"] = position
        else:
            self._dispositions.append({"first": position, "last": position, **item})

    def flush(self, number: int) -> None:
        """A flush row came: the rows before it are sent with the next settlements, unless another flush row comes first."""
        self._flushed.update(self._moved)
        self._moved.clear()
        self._flush_number = number

    def _note(self, handle: int, count: int) -> _Entry | None:
        entry = self._entries.get(handle)
        if entry is None:
            return None
        if not entry.unsent:
            self._untold[handle] = entry
        entry.unsent += count
        self._count += count
        self._is_awaited |= handle in self._waiting
        return entry

    def _check(self, handle: int, entry: _Entry) -> None:
        """Notes whether the source of a handle may be waiting."""
        if entry.came - entry.sent >= entry.waits_at:
            self._waiting.add(handle)
            self._is_awaited |= entry.unsent > 0
        elif self._waiting:
            self._waiting.discard(handle)

    # ---- sending

    @property
    def has_unsent(self) -> bool:
        """Whether there is anything to send."""
        return bool(self._untold or self._dispositions or self._flush_number is not None)

    @property
    def is_source_waiting(self) -> bool:
        """Whether the window of any route is so full that its source may be waiting."""
        return bool(self._waiting)

    def deadline(self) -> float:
        """When to send; infinite where there is nothing."""
        if not self.has_unsent:
            return math.inf
        return -math.inf if self._is_awaited or self._count >= SEND_MESSAGES else self._send_at

    def take(self, now: float) -> list[tuple[int, bytes]]:
        """Everything unsent, as frames; it counts as sent from now on."""
        runs = [(handle, first, last) for handle, entry in self._untold.items() for first, last in _merged(entry.runs)]
        frames: list[tuple[int, bytes]] = [
            *((Kind.SETTLE, pack_runs(part)) for part in _parts(runs, _FRAME_RUNS)),
            *((Kind.DISPOSE, pack_json(part)) for part in _parts(self._dispositions, _FRAME_DISPOSITIONS)),
        ]
        if self._flush_number is not None:
            frames.append((Kind.FLUSHED, pack_flushed(self._flush_number, self._flushed)))
            self._flush_number = None
        for handle, entry in self._untold.items():
            entry.sent += entry.unsent
            entry.unsent = 0
            entry.runs = []
            self._check(handle, entry)
        self._untold.clear()
        self._dispositions.clear()
        self._count = 0
        self._is_awaited = False
        self._send_at = now + SEND_SECONDS
        return frames


def _merged(runs: list[list[int]]) -> list[list[int]]:
    """Adjacent runs joined: outcomes come out of order, and partitions interleave."""
    if len(runs) < 2:
        return runs
    runs.sort()
    merged = [runs[0]]
    for run in runs[1:]:
        if run[0] == merged[-1][1] + 1:
            merged[-1][1] = run[1]
        else:
            merged.append(run)
    return merged


def _parts(items: list[T], count: int) -> Iterator[list[T]]:
    """So many items at most, one part after the other."""
    return (items[at : at + count] for at in range(0, len(items), count))
