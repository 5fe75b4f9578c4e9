"""isthmus.cli.progress."""

from __future__ import annotations

import os
import pty
import select
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from rich.console import Console

from isthmus.cli.pair_view import progress_printer
from isthmus.cli.progress import progress


@contextmanager
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, int]]:
    """Both ends of one that is standard error."""
    near, far = pty.openpty()
    with open(far, "w", encoding="utf-8") as stream, monkeypatch.context() as patch:
        patch.setattr("sys.stderr", stream)
        patch.setenv("TERM", "xterm")
        yield near, far
    os.close(near)


def test_progress_is_shown_at_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal(monkeypatch) as (near, _):
        with progress("sending", 3, quiet=False) as note:
            note(1)
        assert select.select([near], [], [], 5.0)[0]
        assert b"sending" in os.read(near, 4096)


def test_i1_a_terminal_that_pauses_does_not_stop_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after Ctrl-S."""
    resumed = threading.Event()
    with terminal(monkeypatch) as (_, far):
        termios.tcflow(far, termios.TCOOFF)

        def resume() -> None:  # else a call that blocks would never end
            resumed.set()
            termios.tcflow(far, termios.TCOON)

        guard = threading.Timer(5.0, resume)
        guard.start()
        with progress("sending", 3, quiet=False) as note:
            note(1)
        progress_printer(Console(stderr=True))("moving")
        guard.cancel()
        termios.tcflow(far, termios.TCOON)
    assert not resumed.is_set()
