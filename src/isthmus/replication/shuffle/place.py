"""The spools that runs of a state folder have had, so that one that the file no longer names is not lost.

What it is: a list in the state folder of the spools outside of it, as tasks and listeners name them. A spool contains messages that were
settled at their source, or answered with 200: if the setting is changed, or the task is renamed, no route sends its remaining messages, and
only this list records it. What it is not: the spools in the state folder itself, which are found there.

Invariants:
    I1. A spool is on the list before a run writes into it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from isthmus.errors import InvalidArgumentError
from isthmus.whole_file import write_file

__all__ = ["SpoolPlace", "known_places", "note_places"]

_FILE = "spool-places.json"


class SpoolPlace(NamedTuple):
    """A spool: its folder, and its table; empty if a route sends its messages. `reader` is `listener` for a listener's spool."""

    spool: str
    table: str = ""
    reader: str = ""


def known_places(state_folder: Path) -> list[SpoolPlace]:
    """The spools that earlier runs had.

    Raises:
        InvalidArgumentError: the list cannot be read.
    """
    path = state_folder / _FILE
    try:
        return [SpoolPlace(*map(str, each)) for each in json.loads(path.read_bytes())]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError) as error:
        raise InvalidArgumentError(
            f"{path}, which names the spools of earlier runs, cannot be read ({error}); repair it, or remove it after checking that no "
            "spool of an earlier run contains messages"
        ) from None


def note_places(places: Iterable[SpoolPlace], state_folder: Path) -> None:
    """Add spools to the list.

    Raises:
        InvalidArgumentError: the list cannot be read, or written.
    """
    known = known_places(state_folder)
    every = list(dict.fromkeys([*known, *places]))
    if every == known:
        return
    path = state_folder / _FILE
    try:
        write_file(path, json.dumps(every).encode())
    except OSError as error:
        raise InvalidArgumentError(
            f"{path}, which names the spools of runs, cannot be written: {error.strerror or error}"
        ) from None
