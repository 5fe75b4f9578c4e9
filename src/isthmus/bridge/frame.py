"""The frames between driver, reader and sink of a lease.

What it is: kinds of frames and the packing of their payloads. A handle is a number by which reader and sink identify one
opening of a route within a lease: a route that begins again gets another handle, so that frames of the old opening are not taken
for the new one. What it is not: the connection (`isthmus.bridge.host`).

Reader to sink:
    OPEN     JSON {"handle", "spec": RouteSpec, "origin_identity"}: connect to the target
    CLOSE    int64 handle: its opening has ended; rows of it that still come are dropped, nothing of it is settled any more
    WINDOW   int64 handle, int64 messages that may be outstanding; comes before more than that can be
    CLOCK    int64 handle, int64 wall time of the source's system minus monotonic time in ms
    FENCE    JSON {"claim", "until_ns"}: until when (monotonic) routes of that claim may send
    STOPPED  the lease has ended in order
Sink to reader:
    HELLO    JSON {"process"}
    READY    int64 handle: its target is open, rows may come
    SETTLE   (int64 handle, int64 first, int64 last) repeated: the target has acknowledged these positions
    DISPOSE  JSON [{"handle", "first", "last", "disposition", "reason", "description"}]
    PAUSE    JSON {"handle", "text"}: the target accepts nothing; stop granting credit
    RESUME   int64 handle
    FAILED   JSON {"handle", "error", "is_fatal"}: release unsettled messages; CLOSE answers
    FLUSHED  int64 number, then (int64 handle, int64 rows) repeated: flush row `number` came; rows of each open handle that came
             before it since it was opened
    STATS    JSON {"process", "routes": {handle: {counts of the delivery machine, "blocked_by", "last_set_aside", "is_awaited"}}}
    ERROR    JSON {"error", "died"}: the sink as a whole failed; `died`: a step of the query did, or a worker was killed
    END      end of input; everything that came is settled, disposed of, or of closed handles
Reader to driver (after the handshake of `isthmus.bridge.host.control.client`):
    LEASE    JSON {"query", "lease", "slot", "process"}: a lease begins; ASSIGN answers
    REPORT   JSON {"routes": {name: RouteReport}, "asked", "processes": [pid]}: what changed, once a second at most or at once where
             it matters; `asked` numbers a question for how long claims are held, 0: none
    DIED     JSON {"routes": [name]}: the sink's connection ended without ERROR or END
    ENDED    JSON {"error"}: the lease has ended; empty: in order
    LOOK     JSON {"query"}: whether a lease may start; asked by the part of the data source that runs beside the driver
Driver to reader:
    ASSIGN   JSON {"routes": [RouteSpec], "plans": {name: Plan}, "lease_seconds"}: what to carry; without "lease_seconds" the lease
             lasts as long as the data source was told
    ADD      JSON RouteSpec, with "plan" beside its fields: carry this one too
    REMOVE   JSON {"name", "why"}: end it in order, then report ENDED for it
    PLAN     JSON {"name", "window", "span", "set_aside", "deaths"} (`isthmus.bridge.lease.crash_search`)
    GRANT    JSON {"asked", "claims": {claim: seconds}}: how much longer each claim is held
    STOP     text: end the lease in order
    LOOKED   JSON {"stopping": bool}: the answer to LOOK; while true no lease may start

Invariants:
    I1. What is unpacked is what was packed.
"""

from __future__ import annotations

import enum
import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

__all__ = [
    "Kind",
    "pack_flushed",
    "pack_json",
    "pack_numbers",
    "pack_runs",
    "unpack_flushed",
    "unpack_json",
    "unpack_numbers",
    "unpack_runs",
]

_NUMBER = struct.Struct("<q")
_PAIR = struct.Struct("<qq")
_RUN = struct.Struct("<qqq")


class Kind(enum.IntEnum):
    """The kinds of frames."""

    OPEN = 1
    CLOSE = 2
    WINDOW = 3
    CLOCK = 4
    FENCE = 5
    STOPPED = 6
    HELLO = 16
    READY = 17
    SETTLE = 18
    DISPOSE = 19
    PAUSE = 20
    RESUME = 21
    FAILED = 22
    FLUSHED = 23
    STATS = 24
    ERROR = 25
    END = 26
    LEASE = 32
    REPORT = 33
    DIED = 34
    ENDED = 35
    LOOK = 36
    ASSIGN = 48
    ADD = 49
    REMOVE = 50
    PLAN = 51
    GRANT = 52
    STOP = 53
    LOOKED = 54


def pack_json(value: Mapping[str, Any] | Sequence[Any]) -> bytes:
    """A JSON payload."""
    return json.dumps(value, separators=(",", ":")).encode()


def unpack_json(payload: bytes) -> Any:
    """The value of a JSON payload.

    Raises:
        ValueError: it is not JSON.
    """
    return json.loads(payload)


def pack_numbers(*numbers: int) -> bytes:
    """Numbers of 64 bits."""
    return b"".join(map(_NUMBER.pack, numbers))


def unpack_numbers(payload: bytes) -> tuple[int, ...]:
    """What `pack_numbers` packed."""
    return tuple(number for (number,) in _NUMBER.iter_unpack(payload))


def pack_runs(runs: Iterable[tuple[int, int, int]]) -> bytes:
    """Runs of positions: (handle, first, last)."""
    return b"".join(_RUN.pack(*run) for run in runs)


def unpack_runs(payload: bytes) -> list[tuple[int, int, int]]:
    """What `pack_runs` packed."""
    return list(_RUN.iter_unpack(payload))


def pack_flushed(number: int, rows: Mapping[int, int]) -> bytes:
    """The payload of FLUSHED."""
    return _NUMBER.pack(number) + b"".join(_PAIR.pack(*item) for item in rows.items())


def unpack_flushed(payload: bytes) -> tuple[int, dict[int, int]]:
    """What `pack_flushed` packed."""
    return _NUMBER.unpack_from(payload)[0], dict(_PAIR.iter_unpack(payload[_NUMBER.size :]))
