"""The steady state of a copy from one queue to another.

What it is: the rate and the cost between 10 % and 90 % of the messages at the target, the same for the product
and for every peer. Start-up, the first compilations and the end, when the queue runs empty, are excluded.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

from isthmus.bench.process import Account, Usage, cpu_us_per_message
from isthmus.errors import OperationTimeoutError

__all__ = ["Steady", "measure_steady"]

FROM_SHARE, TO_SHARE = 0.1, 0.9


@dataclass(frozen=True, slots=True)
class Steady:
    """The steady state of a copy.

    Attributes:
        messages: how many were moved in all.
        messages_per_second: rate at the target.
        cpu_us_per_message: CPU time of all its processes, microseconds.
        cpu_us_by_process: the same by process group.
        resident_bytes: resident memory of all its processes at the end.
        shared_out_bytes: the same with shared pages counted once.
        resident_bytes_by_process: resident memory by process group.
        processes: the number of its processes.
    """

    messages: int
    messages_per_second: float
    cpu_us_per_message: float
    cpu_us_by_process: dict[str, float] = field(default_factory=dict)
    resident_bytes: int = 0
    shared_out_bytes: int = 0
    resident_bytes_by_process: dict[str, int] = field(default_factory=dict)
    processes: int = 0

    def to_dict(self) -> dict[str, object]:
        """The attributes as values for JSON."""
        return asdict(self)


def measure_steady(
    count: Callable[[], int],
    messages: int,
    account: Account,
    *,
    check: Callable[[], None] = lambda: None,
    poll_seconds: float = 0.1,
    timeout_seconds: float = 600.0,
) -> Steady:
    """Watch a copy until all messages are at the target.

    Args:
        count: how many are at the target now.
        messages: how many there will be.
        account: measures CPU time and memory of the copy's processes.
        check: raises if the copy has failed.
        poll_seconds: time between two polls.
        timeout_seconds: for everything.

    Raises:
        OperationTimeoutError: if the time is over first.
    """
    limit = time.monotonic() + timeout_seconds
    first: tuple[float, int, dict[str, Usage]] | None = None
    last: tuple[float, int, dict[str, Usage]] | None = None
    while True:
        check()
        now, count_now = time.monotonic(), count()
        if first is None and count_now >= messages * FROM_SHARE:
            first = (now, count_now, account.read())
        if last is None and count_now >= messages * TO_SHARE:
            last = (now, count_now, account.read())
        if count_now >= messages:
            break
        if now > limit:
            raise OperationTimeoutError(f"{count_now} of {messages} messages arrived within {timeout_seconds:.0f} s")
        time.sleep(poll_seconds)
    assert first is not None
    assert last is not None
    moved, seconds = last[1] - first[1], last[0] - first[0]
    by_process = cpu_us_per_message(first[2], last[2], moved)
    total = by_process.pop("total")
    return Steady(
        messages=messages,
        messages_per_second=round(moved / seconds, 1) if seconds else 0.0,
        cpu_us_per_message=total,
        cpu_us_by_process=by_process,
        resident_bytes=sum(usage.resident_bytes for usage in last[2].values()),
        shared_out_bytes=sum(usage.shared_out_bytes for usage in last[2].values()),
        resident_bytes_by_process={name: usage.resident_bytes for name, usage in last[2].items()},
        processes=sum(usage.processes for usage in last[2].values()),
    )
