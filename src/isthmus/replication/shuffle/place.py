"""The spools that runs of a state folder have had, so that one that the file no longer names, or that is not mounted, is not lost.

What it is: a list in the state folder of the spools outside of it, as tasks and listeners name them. A spool contains messages that were
settled at their source, or answered with 200: if the setting is changed, or the task is renamed, no route sends its remaining messages, and
only this list records it. What it is not: the spools in the state folder itself, which are found there.

Invariants:
    I1. A spool is on the list before a run writes into it.
    I2. A spool that was made is not made again where it is missing, nor is its table, unless the operator confirms it: another one in the
        mount point of a file system that is not mounted would disappear with its messages once that is mounted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from isthmus.connectors.spool.folder import SpoolError, SpoolFolder, missing
from isthmus.errors import InvalidArgumentError
from isthmus.replication.archive.folder import ArchiveFolder
from isthmus.replication.archive.query import archive_columns
from isthmus.whole_file import write_file

__all__ = ["LISTENER", "SpoolMaker", "SpoolPlace", "known_places", "note_places"]

LISTENER = "listener"
_FILE = "spool-places.json"


class SpoolPlace(NamedTuple):
    """A spool: its folder, and its table; empty if a route sends its messages. `reader` is `LISTENER` for a listener's spool, `made` the spool's
    identity, once it was made.
    """

    spool: str
    table: str = ""
    reader: str = ""
    made: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        """What the same spool has in each list."""
        return self[:3]


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
    noted = {each.key: each for each in known}
    for each in places:
        was = noted.get(each.key, each)
        noted[each.key] = each._replace(made=each.made or was.made)
    every = list(noted.values())
    if every == known:
        return
    path = state_folder / _FILE
    try:
        write_file(path, json.dumps(every).encode())
    except OSError as error:
        raise InvalidArgumentError(
            f"{path}, which names the spools of runs, cannot be written: {error.strerror or error}"
        ) from None


class SpoolMaker:
    """Makes the spools and the tables of routes before they start, and makes none again that is missing (I2).

    Args:
        state_folder: state folder of the run.
        makes_again: whether the operator has confirmed that missing ones are made again; each once.
    """

    def __init__(self, state_folder: Path, *, makes_again: bool = False) -> None:
        self._state_folder = state_folder
        self._makes_again = makes_again
        self._seen: set[tuple[str, str, str]] = set()

    def make(self, places: Iterable[SpoolPlace]) -> None:
        """Make spools of a route, each with its table.

        Raises:
            SpoolError: one is missing, or cannot be made or read.
            InvalidArgumentError: the list cannot be read, or written.
        """
        wanted = list(places)
        if not wanted:
            return  # most routes: a list that cannot be read does not concern them
        were_made = {each.key for each in known_places(self._state_folder) if each.made}
        made = []
        for place in wanted:
            may_make = place.key not in were_made or (self._makes_again and place.key not in self._seen)
            try:
                made.append(_make(place) if may_make else _require(place))
            except OSError as error:
                raise SpoolError(f"spool {place.spool} cannot be used: {error.strerror or error}") from error
            self._seen.add(place.key)
        note_places(made, self._state_folder)


def _make(place: SpoolPlace) -> SpoolPlace:
    spool = SpoolFolder(Path(place.spool))
    try:
        spool.make()
    except OSError:
        if place.reader != LISTENER:
            raise
        return place  # the listener may run on another machine, and makes it there
    if place.table:
        ArchiveFolder(Path(place.table), archive_columns()).make()
    return place._replace(made=spool.identity())


def _require(place: SpoolPlace) -> SpoolPlace:
    spool = SpoolFolder(Path(place.spool))
    spool.require()
    if place.table and not ArchiveFolder(Path(place.table), archive_columns()).is_made():
        raise missing(f"table {place.table}")
    return place._replace(made=spool.identity())
