"""Ctrl-C and SIGTERM as a flag, for verbs that finish what they have begun.

What it is: a handler of SIGINT and SIGTERM for a part of a verb. What it is not: the handling of a run's signals.

Invariants:
    I1. The first of either is recorded; the second one has its usual effect.
    I2. A process that was started with one of them ignored still ignores it.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

__all__ = ["CHANGES", "LEAVES_QUEUE", "REMOVES", "SENDS", "interruption", "terminable"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)

LEAVES_QUEUE = (
    "interrupted: sent messages are removed from their queue, which may take a moment; Ctrl-C again ends immediately"
)
"""Text of verbs that send messages of a queue elsewhere."""
SENDS = "interrupted: waiting for the answers to sent messages; Ctrl-C again ends immediately"
"""Text of verbs that send messages of a file or table."""
REMOVES = "interrupted: waiting for the answers to removals; Ctrl-C again ends immediately"
"""Text of verbs that remove messages."""
CHANGES = "interrupted: waiting for the current change; Ctrl-C again ends immediately"
"""Text of verbs that change entities."""


@contextmanager
def terminable() -> Iterator[None]:
    """Within, SIGTERM raises a KeyboardInterrupt like Ctrl-C, unless it is ignored or handled already."""
    before = signal.getsignal(signal.SIGTERM)
    if threading.current_thread() is not threading.main_thread() or before is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def interruption(text: str) -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C was pressed, or SIGTERM received, instead of a KeyboardInterrupt.

    Args:
        text: what is written to standard error then.
    """
    is_interrupted = False
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    handled = {number: handler for number, handler in before.items() if handler not in (signal.SIG_IGN, None)}
    if threading.current_thread() is not threading.main_thread() or not handled:
        yield lambda: False
        return

    def restore() -> None:
        for number, handler in handled.items():
            signal.signal(number, handler)

    def note(number: int, frame: object) -> None:
        nonlocal is_interrupted
        is_interrupted = True
        restore()
        with suppress(OSError):  # Ctrl-C has also ended `tee`, or another reader
            print(text, file=sys.stderr, flush=True)

    for number in handled:
        signal.signal(number, note)
    try:
        yield lambda: is_interrupted
    finally:
        restore()
