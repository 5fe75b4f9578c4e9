"""Ctrl-C as a question, for verbs that finish what they have begun.

What it is: a handler of SIGINT for a part of a verb. What it is not: the handling of SIGTERM, or of a run's signals.

Invariants:
    I1. The first Ctrl-C is noted; the second one does what Ctrl-C did before.
    I2. A process that was started with SIGINT ignored goes on ignoring it.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["LEAVES_QUEUE", "interruption"]

LEAVES_QUEUE = (
    "interrupted: what was sent is taken out of its queue, which may take a moment; Ctrl-C again ends at once"
)
"""What verbs say that send messages of a queue elsewhere."""


@contextmanager
def interruption(text: str) -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C was pressed, instead of a KeyboardInterrupt anywhere.

    Args:
        text: what is written to standard error when it is pressed.
    """
    pressed = False
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before in (signal.SIG_IGN, None):
        yield lambda: False
        return

    def note(number: int, frame: object) -> None:
        nonlocal pressed
        pressed = True
        signal.signal(signal.SIGINT, before)
        print(text, file=sys.stderr, flush=True)

    signal.signal(signal.SIGINT, note)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, before)
