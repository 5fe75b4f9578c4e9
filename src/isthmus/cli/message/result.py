"""The result of a verb whose repetition would send messages twice.

What it is: a text on standard output or, if that cannot be written, e.g. to a full disk, on standard error: the exit code of the verb says what became
of the messages, and a script that repeats it does so only where messages are left. What it is not: the output of other verbs, which fail then
(`isthmus.cli.app`, I4).
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress

__all__ = ["print_result"]


def print_result(text: str) -> None:
    """Print a line."""
    try:
        print(text, flush=True)
    except OSError as error:
        # What is still in the buffer would be written, and refused, again at exit.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
        with suppress(OSError):  # the same pipe, or a terminal that was closed
            print(f"standard output cannot be written ({error.strerror}): {text}", file=sys.stderr, flush=True)
