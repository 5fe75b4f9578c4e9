"""Ctrl-C and SIGTERM as a question, for verbs that finish what they have begun.

What it is: a handler of SIGINT and SIGTERM for a part of a verb. What it is not: the handling of a run's signals.

Invariants:
    I1. The first of either is noted; the second one does what it did before.
    I2. A process that was started with one of them ignored goes on ignoring it.
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
    "interrupted: what was sent is taken out of its queue, which may take a moment; Ctrl-C again ends at once"
)
"""What verbs say that send messages of a queue elsewhere."""
SENDS = "interrupted: answers to what was sent are waited for; Ctrl-C again ends at once"
"""What verbs say that send messages of a file or table."""
REMOVES = "interrupted: answers to what was removed are waited for; Ctrl-C again ends at once"
"""What verbs say that remove messages."""
CHANGES = "interrupted: the change that is under way is waited for; Ctrl-C again ends at once"
"""What verbs say that change entities."""


@contextmanager
def terminable() -> Iterator[None]:
    """While it holds, SIGTERM raises a KeyboardInterrupt as Ctrl-C does, unless it is ignored or heard already."""
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
    """Whether Ctrl-C was pressed, or SIGTERM came, instead of a KeyboardInterrupt anywhere.

    Args:
        text: what is written to standard error then.
    """
    is_interrupted = False
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    heard = {number: handler for number, handler in before.items() if handler not in (signal.SIG_IGN, None)}
    if threading.current_thread() is not threading.main_thread() or not heard:
        yield lambda: False
        return

    def restore() -> None:
        for number, handler in heard.items():
            signal.signal(number, handler)

    def note(number: int, frame: object) -> None:
        nonlocal is_interrupted
        is_interrupted = True
        restore()
        with suppress(OSError):  # Ctrl-C has also ended `tee`, or whatever read it
            print(text, file=sys.stderr, flush=True)

    for number in heard:
        signal.signal(number, note)
    try:
        yield lambda: is_interrupted
    finally:
        restore()
