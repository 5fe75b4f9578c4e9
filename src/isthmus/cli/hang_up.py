"""The closing of the terminal that a command runs in.

What it is: a hang-up (SIGHUP) handled as a request to end, for a command whose child processes must not end by it. What it is not:
a daemon; `nohup` and service managers keep a command running without a terminal, and are respected.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["HangUp", "discard_closed", "open_terminals", "outlived"]


def open_terminals() -> list[int]:
    """Those of the descriptors of standard output and standard error that are terminals."""
    return [descriptor for descriptor in (1, 2) if os.isatty(descriptor)]


def discard_closed(terminals: list[int]) -> None:
    """Discard what is written to those of these terminals that are closed: the output of a clean end must not become a failure."""
    if closed := _closed(terminals):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for descriptor in closed:
            os.dup2(nowhere, descriptor)
        os.close(nowhere)


def _closed(terminals: list[int]) -> list[int]:
    return [descriptor for descriptor in terminals if not os.isatty(descriptor)]


@contextmanager
def outlived() -> Iterator[None]:
    """Within, the closing of the terminal ends nothing, and what is written to it afterwards is discarded."""
    before = signal.getsignal(signal.SIGHUP)
    if threading.current_thread() is not threading.main_thread() or before in (signal.SIG_IGN, None):
        yield
        return
    terminals = open_terminals()
    signal.signal(signal.SIGHUP, lambda *_: discard_closed(terminals))
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


class HangUp:
    """From its creation on a hang-up is ignored, also by every process started then; after `listen` it is a request to end.

    Args:
        end: requests the end of the command; safe in a signal handler.
    """

    def __init__(self, end: Callable[[], object]) -> None:
        self._end = end
        self._terminals = open_terminals()
        # Under `nohup` the command is to continue.
        self._is_handled = signal.signal(signal.SIGHUP, signal.SIG_IGN) is not signal.SIG_IGN

    def listen(self) -> None:
        """A hang-up ends the command from now on, and so does an earlier one."""
        if not self._is_handled:
            return
        signal.signal(signal.SIGHUP, lambda *_: self._hang_up())
        if _closed(self._terminals):
            self._hang_up()

    def _hang_up(self) -> None:
        discard_closed(self._terminals)
        self._end()
