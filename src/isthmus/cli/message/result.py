"""The result of a verb whose repetition would send messages twice, or switch a pair back.

What it is: a text on standard output or, if that cannot be written, e.g. to a full disk, on standard error: the exit code of the verb says what became
of the messages, and a script that repeats it does so only where messages are left. What it is not: the output of other verbs, which fail then
(`isthmus.cli.app`, I4).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

__all__ = ["print_note", "print_result", "unfailing"]


def print_result(text: str) -> None:
    """Print a line."""
    try:
        print(text, flush=True)
    except OSError as error:
        _discard(error, text)


def print_note(text: str) -> None:
    """Print a line about the result on standard error, if that can be written."""
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)


@contextmanager
def unfailing(instead: str) -> Iterator[None]:
    """Within, standard output that cannot be written is reported on standard error, with the text `instead`, and is no failure."""
    try:
        yield
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        _discard(error, instead)


def _discard(error: OSError, text: str) -> None:
    # What is still in the buffer would be written, and refused, again at exit.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
    # It may be the same pipe, or a terminal that was closed.
    print_note(f"standard output cannot be written ({error.strerror}): {text}")
