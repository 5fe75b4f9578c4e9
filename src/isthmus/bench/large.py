"""How long large messages delay other clients of the namespace.

What it is: a client that sends small messages at a steady rate and receives them, in periods without and periods with
another client that sends, receives and completes the largest messages, one after the other. In a third kind of period the
other client does the same in a namespace of its own, which shows the share of the machine's processors and disk. As a process
(`python -m isthmus.bench.large BYTES QUEUE`, connection string in BENCH_LOAD) it is that other client. What it is not: a
measurement of the network.

Invariants:
    I1. All kinds of period are measured in one run, in turn, against one process.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from isthmus.amqp.section import encode_message
from isthmus.bench.latency import percentile
from isthmus.bench.load import connect, listen, stamp_of
from isthmus.bench.process import Account
from isthmus.errors import OperationTimeoutError
from isthmus.testing.namespace import NamespaceProcess, namespace
from isthmus.transport import Receiver, Sender

__all__ = ["LARGEST_BYTES", "measure_large"]

# Body of a message that is just below the service's limit of 100 MB.
LARGEST_BYTES = (100 << 20) - 4096
_QUEUE, _LARGE_QUEUE = "bench", "bench-large"
_CONFIG = f"queues: {{{_QUEUE}: {{}}, {_LARGE_QUEUE}: {{max_message_size_in_kilobytes: 102400}}}}"
# Connections, first files and cold caches are not to be measured.
_WARM_UP_SECONDS = 1.0
_SPARE_SECONDS = 20.0


def measure_large(
    folder: Path, rate: float, seconds: float, *, rounds: int = 3, size_bytes: int = LARGEST_BYTES
) -> dict[str, object]:
    """Times from send to receipt of small messages, without large ones, with large ones in flight, and with large ones in another namespace.

    Args:
        folder: where the namespaces keep their data.
        rate: small messages per second.
        seconds: length of each period.
        rounds: how many periods of either kind.
        size_bytes: body of a large message.

    Raises:
        OperationTimeoutError: small messages did not arrive, or no large one did.
    """
    without: list[float] = []
    beside: list[float] = []
    elsewhere: list[float] = []
    by_round: list[dict[str, float]] = []
    carried = 0
    with namespace(folder / "here", config=_CONFIG) as served, namespace(folder / "there", config=_CONFIG) as other:
        resident_before = _resident_bytes(served)
        peak = 0
        for _ in range(rounds):
            quiet = _spell(served, rate, seconds)
            with _large_client(served, size_bytes) as done:
                busy = _spell(served, rate, seconds)
                peak = max(peak, _resident_bytes(served))
            carried += done[0]
            with _large_client(other, size_bytes):
                apart = _spell(served, rate, seconds)
            figures = {f"without_{k}": v for k, v in _summary(quiet).items()} | _summary(busy)
            figures["p99_ratio"] = round(figures["p99_ms"] / figures["without_p99_ms"], 2)
            by_round.append(figures | {f"elsewhere_{k}": v for k, v in _summary(apart).items()})
            without += quiet
            beside += busy
            elsewhere += apart
    if not carried:
        raise OperationTimeoutError("no large message went through")
    base, shown = _summary(without), _summary(beside)
    return {
        "rate": rate,
        "seconds": seconds,
        "rounds": rounds,
        "large_bytes": size_bytes,
        "large_messages": carried,
        "large_messages_per_second": round(carried / (rounds * seconds), 2),
        "without_p50_ms": base["p50_ms"],
        "without_p99_ms": base["p99_ms"],
        "without_max_ms": base["max_ms"],
        **shown,
        "p99_ratio": round(shown["p99_ms"] / base["p99_ms"], 2),
        **{f"elsewhere_{k}": v for k, v in _summary(elsewhere).items()},
        "by_round": {str(number): values for number, values in enumerate(by_round, 1)},
        "resident_bytes_before": resident_before,
        "resident_bytes": peak,
    }


def _summary(waits: Sequence[float]) -> dict[str, float]:
    ordered = sorted(waits)
    return {
        "p50_ms": round(percentile(ordered, 0.5), 2),
        "p99_ms": round(percentile(ordered, 0.99), 2),
        "max_ms": round(ordered[-1], 2),
    }


def _resident_bytes(served: NamespaceProcess) -> int:
    return Account({"namespace": served.pid}).read()["namespace"].resident_bytes


def _spell(served: NamespaceProcess, rate: float, seconds: float) -> list[float]:
    """Sends small messages for so many seconds; returns the milliseconds from send to receipt of each."""
    total = int(rate * (_WARM_UP_SECONDS + seconds))
    load = subprocess.Popen(
        [sys.executable, "-m", "isthmus.bench.load", str(rate), str(_WARM_UP_SECONDS + seconds), _QUEUE],
        env={**os.environ, "BENCH_LOAD": served.connection_string},
    )
    limit = time.monotonic() + _WARM_UP_SECONDS + seconds + _SPARE_SECONDS
    waits: list[float] = []
    begin = 0.0
    seen = 0

    def note(payload: bytes, now: float) -> None:
        nonlocal begin, seen
        sent = stamp_of(payload)[0]
        seen += 1
        begin = begin or sent + _WARM_UP_SECONDS
        if sent >= begin:
            waits.append((now - sent) * 1000)

    listen(served.connection_string, [_QUEUE], note, lambda: seen >= total or time.monotonic() > limit)
    load.wait()
    if seen < total:
        raise OperationTimeoutError(f"{seen} of {total} messages arrived in time")
    return waits


@contextmanager
def _large_client(served: NamespaceProcess, size_bytes: int) -> Iterator[list[int]]:
    """Sends and receives large messages during the block; afterwards the list contains how many."""
    done = [0]
    client = subprocess.Popen(
        [sys.executable, "-m", "isthmus.bench.large", str(size_bytes), _LARGE_QUEUE],
        env={**os.environ, "BENCH_LOAD": served.connection_string},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        yield done
    finally:
        output, _ = client.communicate()
        done[0] = int(output or b"0")


def _go_round(connection_string: str, queue: str, size_bytes: int) -> int:
    """Sends, receives and completes messages of one size until the standard input ends; returns how many were completed."""
    message = encode_message(os.urandom(1 << 20) * (size_bytes >> 20) + bytes(size_bytes & 0xFFFFF))
    count = 0
    with connect(connection_string, queue) as client:
        sender = Sender(client, queue).wait_ready()
        receiver = Receiver(client, queue).wait_attached()
        while not _is_over():
            sender.send_all([message], timeout_seconds=120.0)
            receiver.grant(1)
            client.wait_until(lambda: bool(receiver.arrived), 120.0, "a large message")
            for run in receiver.take():
                assert len(run.payloads[0]) > size_bytes
                receiver.dispose(run.first_id, run.first_id)
                count += 1
            client.flush()
    return count


def _is_over() -> bool:
    return bool(select.select([sys.stdin], [], [], 0)[0])


if __name__ == "__main__":
    # On a separate machine it would not use the processors of the namespace and the others.
    os.nice(19)
    print(_go_round(os.environ["BENCH_LOAD"], sys.argv[2], int(sys.argv[1])))
