"""The messages in the spools of a route, for verification: settled at the source, and not known to be at the target.

What it is: a reading of the folders, which changes nothing. A message goes from the spool `in` to the spool `out`; so `in` is read first. What
it is not: the comparison (`isthmus.replication.verification.audit.audit`).

Invariants:
    I1. A message that was in the spools when the reading began is found, unless it was sent to the target meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from isthmus.connectors.spool.reader import SpoolMissingError, SpoolReader
from isthmus.connectors.spool.refused import refused_messages
from isthmus.replication.shuffle.start import is_spooled, spool_folder
from isthmus.topology.model import Route
from isthmus.topology.step import StepDeclaration
from isthmus.topology.step.order import legs

__all__ = ["SpoolContents"]

_ALL = 1 << 62


class SpoolContents:
    """The messages in the spools of routes.

    Args:
        routes: routes by name; those without a spool have no messages.
        state_folder: state folder of the run that carries them.
    """

    def __init__(self, routes: Mapping[str, Route], state_folder: Path) -> None:
        self._folders = {
            name: (spool_folder(route, state_folder), _is_aggregate(route))
            for name, route in routes.items()
            if is_spooled(route)
        }

    def absent(self) -> Iterator[tuple[str, Path]]:
        """Routes whose spools are not where they are looked for, and where that is: the route has never run, or its run has another state folder."""
        for name, (folder, _) in self._folders.items():
            if not SpoolReader(folder / "in").identity:
                yield name, folder

    def waiting(self, route: str) -> Iterator[bytes]:
        """Waiting messages of a route. Results of `aggregate` are not messages of the source."""
        folder, is_aggregate = self._folders.get(route, (None, False))
        if folder is None:
            return
        yield from _from(folder / "in")
        if not is_aggregate:
            yield from _from(folder / "out")

    def set_aside(self, route: str) -> Iterator[bytes]:
        """Messages of a route that were set aside."""
        folder, is_aggregate = self._folders.get(route, (None, False))
        if folder is None:
            return
        yield from refused_messages(folder / "in")
        if not is_aggregate:
            yield from refused_messages(folder / "out")


def _is_aggregate(route: Route) -> bool:
    step = legs(route.options.steps).shuffle
    return bool(step) and StepDeclaration.from_text(step).kind == "aggregate"


def _from(spool: Path) -> Iterator[bytes]:
    """Messages of a spool that were not taken; segments that are deleted meanwhile were taken."""
    reader = SpoolReader(spool)
    taken = reader.taken()
    start = reader.first() if taken is None else reader.position(taken)
    last = reader.last()
    try:
        for part in reader.ranges(start, last, _ALL):
            for block, records in reader.blocks(part):
                for number, record in enumerate(records, block.first):
                    if record.key and number >= (taken or 0):
                        yield record.message
    except SpoolMissingError:
        if (reader.taken() or 0) <= start.number:
            raise
        yield from _from(spool)
