"""A table that is shown again and again, until Ctrl-C.

What it is: a display that replaces itself on a terminal, and one table behind the other where the output is a file or a pipe. What it is not: the
contents.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["show_repeatedly"]


def show_repeatedly(table: Callable[[], Any]) -> None:
    """Show tables; ends only by an exception.

    Args:
        table: makes the next one, after a while.
    """
    from rich.console import Console
    from rich.live import Live

    console = Console(soft_wrap=not Console().is_terminal)
    if not console.is_terminal:  # there, `Live` shows nothing before its end
        while True:
            console.print(table())
            console.file.flush()
    with Live(table(), console=console, refresh_per_second=4) as live:
        while True:
            live.update(table())
