"""The progress bar of a command.

What it is: a progress bar on standard error, if that is a terminal. What it is not: a log; nothing is written elsewhere.

Invariants:
    I1. A terminal that pauses, e.g. by Ctrl-S, or as its connection of ssh is stalled, does not stop the work: locks would expire, and messages that
        were sent would be sent again.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from isthmus.cli.message.reader import is_ready

__all__ = ["progress"]


@contextmanager
def progress(what: str, total: int | None = None, *, quiet: bool) -> Iterator[Callable[[int], None]]:
    """A progress bar on standard error, if that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    terminal: Any = _Ready(sys.stderr)
    console = Console(file=terminal)
    if quiet or not console.is_terminal:
        yield lambda count: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda count: bar.advance(task, count)


class _Ready(io.TextIOBase):
    """A terminal, without what it does not take at once."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    @property
    def encoding(self) -> str | None:  # type: ignore[override]
        return getattr(self._stream, "encoding", None)

    def isatty(self) -> bool:
        return self._stream is not None and bool(self._stream.isatty())

    def fileno(self) -> int:
        return int(self._stream.fileno())

    def write(self, text: str) -> int:
        if is_ready(self._stream):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        if is_ready(self._stream):
            self._stream.flush()
