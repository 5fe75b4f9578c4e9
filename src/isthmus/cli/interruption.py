"""Ctrl-C, SIGTERM and the closing of the terminal as a flag, for verbs that finish what they have begun.

What it is: a handler of SIGINT, SIGTERM and SIGHUP for a part of a verb. What it is not: the handling of a run's signals.

Invariants:
    I1. The first of them is recorded; the second one has its usual effect, except SIGHUP after SIGHUP.
    I2. A process that was started with one of them ignored still ignores it, e.g. SIGHUP under `nohup`.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from isthmus.cli.hang_up import discard_closed, open_terminals

__all__ = ["CHANGES", "LEAVES_QUEUE", "REMOVES", "SENDS", "interruption", "terminable"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

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
def interruption(text: str, *, outlives_terminal: bool = False) -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C was pressed, SIGTERM received or the terminal closed, instead of a KeyboardInterrupt.

    Args:
        text: what is written to standard error then.
        outlives_terminal: whether the closing of the terminal is no request to end (`isthmus.cli.hang_up.outlived`).
    """
    is_interrupted = False
    numbers = [number for number in _SIGNALS if number != signal.SIGHUP or not outlives_terminal]
    before = {number: signal.getsignal(number) for number in numbers}
    handled = {number: handler for number, handler in before.items() if handler not in (signal.SIG_IGN, None)}
    if threading.current_thread() is not threading.main_thread() or not handled:
        yield lambda: False
        return
    terminals = open_terminals()

    def restore() -> None:
        for number, handler in handled.items():
            signal.signal(number, handler)

    def note(number: int, frame: object) -> None:
        nonlocal is_interrupted
        is_interrupted = True
        restore()
        if number == signal.SIGHUP:  # which comes from the shell, and again when the shell has ended
            signal.signal(number, signal.SIG_IGN)
            discard_closed(terminals)
        with suppress(OSError):  # Ctrl-C has also ended `tee`, or another reader
            print(text, file=sys.stderr, flush=True)

    for number in handled:
        signal.signal(number, note)
    try:
        yield lambda: is_interrupted
    finally:
        restore()
